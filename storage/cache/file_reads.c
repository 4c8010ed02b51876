/* Reads many ranges of open files, with the GIL released once, and cuts what was read into values. `Drive.read_many` and
 * `cut_values` in blocking_io.py are the callers.
 *
 * A thread that releases the GIL for each range wakes a thread that waits for it, and then waits itself: with two cores
 * that takes longer than the reading of a range that is in the page cache.
 *
 * Uses Python's stable ABI, from 3.11 on, and needs no GIL.
 */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* a free-threaded Python has no stable ABI */
#define Py_LIMITED_API 0x030B0000
#endif
#define _FILE_OFFSET_BITS 64
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

enum { MAX_CALL = 1 << 30 }; /* bytes; Linux reads 2 GiB at most, macOS refuses more */

typedef struct {
    int64_t fd, start, end;
    char *to;
    int is_whole;
} Range;

static void read_range(Range *range) {
    int64_t at = range->start;
    char *to = range->to;
    while (at < range->end) {
        int64_t left = range->end - at;
        ssize_t got = pread((int)range->fd, to, left < MAX_CALL ? (size_t)left : MAX_CALL, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break; /* an error, or the end of the file; the caller reads it again to find out */
        at += got;
        to += got;
    }
    range->is_whole = at >= range->end;
}

/* Fills the ranges' positions, and makes the object that each is read into. */
static PyObject *make_values(Range *ranges, Py_ssize_t count, const int64_t *fds, const int64_t *starts,
                             const int64_t *ends) {
    PyObject *values = PyList_New(count);
    for (Py_ssize_t at = 0; values && at < count; at++) {
        if (starts[at] < 0 || ends[at] < starts[at] || fds[at] > INT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "ranges must have a descriptor, and must not end before they start");
            Py_CLEAR(values);
            break;
        }
        PyObject *value = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(ends[at] - starts[at]));
        if (!value) {
            Py_CLEAR(values);
            break;
        }
        ranges[at] = (Range){fds[at], starts[at], ends[at], PyBytes_AsString(value), 0};
        PyList_SetItem(values, at, value);
    }
    return values;
}

PyDoc_STRVAR(read_doc,
             "read_many(fds, starts, ends, /)\n--\n\nReturns the bytes of ranges of open files; None for a range that "
             "cannot be read to its end. The arguments are buffers of int64.");

static PyObject *read_many(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer fds, starts, ends;
    if (!PyArg_ParseTuple(args, "y*y*y*:read_many", &fds, &starts, &ends)) return NULL;
    PyObject *values = NULL;
    Range *ranges = NULL;
    Py_ssize_t count = starts.len / (Py_ssize_t)sizeof(int64_t);
    if (fds.len != starts.len || ends.len != starts.len || starts.len % (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "fds, starts and ends must be int64 and of one length");
        goto done;
    }
    ranges = malloc(count ? (size_t)count * sizeof(Range) : 1);
    if (!ranges) {
        PyErr_NoMemory();
        goto done;
    }
    values = make_values(ranges, count, fds.buf, starts.buf, ends.buf);
    if (!values) goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < count; at++) read_range(&ranges[at]);
    Py_END_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < count; at++) {
        if (!ranges[at].is_whole) {
            Py_INCREF(Py_None);
            PyList_SetItem(values, at, Py_None);
        }
    }
done:
    free(ranges);
    PyBuffer_Release(&fds);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&ends);
    return values;
}

PyDoc_STRVAR(cut_doc,
             "cut(data, starts, ends, /)\n--\n\nReturns copies of ranges of a buffer. Starts and ends are buffers of "
             "int64.");

static PyObject *cut(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data, starts, ends;
    if (!PyArg_ParseTuple(args, "y*y*y*:cut", &data, &starts, &ends)) return NULL;
    Py_ssize_t count = starts.len / (Py_ssize_t)sizeof(int64_t);
    const int64_t *first = starts.buf, *last = ends.buf;
    PyObject *values = NULL;
    if (ends.len != starts.len || starts.len % (Py_ssize_t)sizeof(int64_t))
        PyErr_SetString(PyExc_ValueError, "starts and ends must be int64 and of one length");
    else
        values = PyList_New(count);
    for (Py_ssize_t at = 0; values && at < count; at++) {
        PyObject *value = NULL;
        if (first[at] < 0 || last[at] < first[at] || last[at] > data.len)
            PyErr_SetString(PyExc_ValueError, "ranges must lie within the buffer");
        else
            value = PyBytes_FromStringAndSize((const char *)data.buf + first[at], (Py_ssize_t)(last[at] - first[at]));
        if (value)
            PyList_SetItem(values, at, value);
        else
            Py_CLEAR(values);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&ends);
    return values;
}

static PyMethodDef methods[] = {
    {"cut", cut, METH_VARARGS, cut_doc},
    {"read_many", read_many, METH_VARARGS, read_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_reads", "Reads ranges of files; see file_reads.c.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__reads(void) { return PyModuleDef_Init(&definition); }

/* Packs the values of a column from their stored bytes; `concurrent_loader.batch.encoded_rows` is the caller.
 *
 * Python and NumPy need several calls per value for this, and each NumPy call on more than 500 values releases the GIL,
 * so that threads wake and wait for each other.
 *
 * Uses Python's stable ABI, from 3.11 on, and needs no GIL.
 */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* a free-threaded Python has no stable ABI */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdint.h>
#include <string.h>

static uint64_t little_endian(const unsigned char *from) {
    uint64_t value = 0;
    for (int at = 7; at >= 0; at--) value = value << 8 | from[at];
    return value;
}

PyDoc_STRVAR(count_doc,
             "count_numbers(rows, header_bytes, item_bytes, /)\n--\n\nReturns how many numbers each row has, as int64 in "
             "bytes; None if a row is no array of one dimension.");

static PyObject *count_numbers(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *given;
    Py_ssize_t header, item;
    if (!PyArg_ParseTuple(args, "Onn:count_numbers", &given, &header, &item)) return NULL;
    if ((header != 0 && header != 16) || item < 1) {
        PyErr_SetString(PyExc_ValueError, "header_bytes must be 0 or 16, and item_bytes positive");
        return NULL;
    }
    PyObject *rows = PySequence_Tuple(given); /* which no other thread can change */
    if (!rows) return NULL;
    Py_ssize_t number = PyTuple_Size(rows);
    PyObject *counts = PyBytes_FromStringAndSize(NULL, number * (Py_ssize_t)sizeof(int64_t));
    char *to = counts ? PyBytes_AsString(counts) : NULL;
    for (Py_ssize_t at = 0; counts && at < number; at++) {
        Py_buffer row;
        if (PyObject_GetBuffer(PyTuple_GetItem(rows, at), &row, PyBUF_SIMPLE)) {
            Py_CLEAR(counts);
            break;
        }
        int64_t count = (row.len - header) / item;
        const unsigned char *head = row.buf;
        int fits = row.len >= header && (row.len - header) % item == 0 &&
                   (!header || (little_endian(head) == 1 && little_endian(head + 8) == (uint64_t)count));
        PyBuffer_Release(&row);
        if (!fits) {
            Py_DECREF(counts);
            counts = Py_None;
            Py_INCREF(counts);
            break;
        }
        memcpy(to + at * (Py_ssize_t)sizeof count, &count, sizeof count);
    }
    Py_DECREF(rows);
    return counts;
}

PyDoc_STRVAR(join_doc,
             "join_into(target, rows, header_bytes, /)\n--\n\nWrites the rows without their headers one after the "
             "other into a buffer of exactly their size.");

static PyObject *join_into(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer target;
    PyObject *given;
    Py_ssize_t header;
    if (!PyArg_ParseTuple(args, "w*On:join_into", &target, &given, &header)) return NULL;
    PyObject *rows = PySequence_Tuple(given);
    Py_ssize_t number = rows ? PyTuple_Size(rows) : 0, filled = 0;
    int failed = !rows;
    for (Py_ssize_t at = 0; !failed && at < number; at++) {
        Py_buffer row;
        if (PyObject_GetBuffer(PyTuple_GetItem(rows, at), &row, PyBUF_SIMPLE)) {
            failed = 1;
            break;
        }
        Py_ssize_t size = row.len - header;
        failed = header < 0 || size < 0 || size > target.len - filled;
        if (!failed) {
            memcpy((char *)target.buf + filled, (const char *)row.buf + header, (size_t)size);
            filled += size;
        } else {
            PyErr_SetString(PyExc_ValueError, "a row is shorter than its header, or the rows are longer than the target");
        }
        PyBuffer_Release(&row);
    }
    if (!failed && filled != target.len) {
        PyErr_SetString(PyExc_ValueError, "the rows are shorter than the target");
        failed = 1;
    }
    Py_XDECREF(rows);
    PyBuffer_Release(&target);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"count_numbers", count_numbers, METH_VARARGS, count_doc},
    {"join_into", join_into, METH_VARARGS, join_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_packed_rows", "Packs rows; see packed_rows.c.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__packed_rows(void) { return PyModuleDef_Init(&definition); }

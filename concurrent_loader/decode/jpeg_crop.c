/* Decodes a crop of a JPEG at its final size into the memory of the batch, with the GIL released.
 *
 * Only the work that the crop needs is done. Rows above and below the crop, and columns beside it, are skipped after
 * entropy decoding (jpeg_skip_scanlines and jpeg_crop_scanline of libjpeg-turbo). The inverse DCT produces 1/2, 1/4 or
 * 1/8 of the size where the crop shrinks by more than that. An antialiased bilinear resize does the rest, row by row as
 * the rows are decoded: only a few rows of the image exist at a time.
 *
 * The resize is the one of Pillow and of torch with antialias=True: a triangle filter as wide as the scale, clipped to
 * the crop (P. Heckbert, "Fundamentals of Texture Mapping and Image Warping", 1989). Weights have 8 bits and sum to
 * exactly 256, so that sums of bytes fit into 16 bits and a flat area keeps its value. Crops that shrink too much for
 * 8-bit weights are left to other decoders.
 *
 * Uses Python's stable ABI, from 3.11 on, and needs no GIL.
 */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* a free-threaded Python has no stable ABI */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000 || \
    LIBJPEG_TURBO_VERSION_NUMBER >= 4000000
#error "libjpeg-turbo 2 or 3 is needed: jpeg_crop_scanline, jpeg_skip_scanlines, JCS_EXT_RGBX"
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
/* The loader of the module chooses the version for the processor. */
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

typedef uint16_t v16hu __attribute__((vector_size(32)));
typedef uint16_t v8hu __attribute__((vector_size(16)));
typedef uint8_t v16qu __attribute__((vector_size(16)));
typedef uint8_t v8qu __attribute__((vector_size(8)));

#define PIXEL 4            /* bytes per pixel: red, green, blue, and one unused */
#define PAD 64             /* bytes that a vector may read or write past the end of a row */
#define MAX_SCANS 500      /* a second check: storage/images/jpeg_scans.py has counted them before */
#define MAX_SIDE 65500     /* limit of libjpeg */
#define MAX_SHRINK 64      /* input pixels per output pixel; with more, 8 bits would round their weights to 0 */

/* -- errors: libjpeg reports them through longjmp ------------------------------------------------------------------ */

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf out;
    char text[JMSG_LENGTH_MAX];
} Errors;

static void fail(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    errors->base.format_message(info, errors->text);
    longjmp(errors->out, 1);
}

static void warn(j_common_ptr info, int level) {
    if (level >= 0) return; /* a trace message */
    /* A file that ends too early is damaged, although libjpeg would fill the rest with gray. Other warnings concern
     * bytes that the image does not need. */
    if (info->err->msg_code == JWRN_JPEG_EOF || info->err->msg_code == JWRN_HIT_MARKER) fail(info);
    info->err->num_warnings++;
}

static void silent(j_common_ptr info) { (void)info; }

static void count_scans(j_common_ptr info) {
    if (!info->is_decompressor || ((j_decompress_ptr)info)->input_scan_number <= MAX_SCANS) return;
    Errors *errors = (Errors *)info->err;
    snprintf(errors->text, sizeof errors->text, "more than %d scans", MAX_SCANS);
    longjmp(errors->out, 1);
}

/* -- weights ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int max_taps;      /* largest number of taps of an output pixel */
    int32_t *first;    /* first input pixel of each output pixel, relative to the crop's first whole pixel */
    int32_t *count;
    uint16_t *weights; /* (num_out, max_taps) */
} Taps;

static void free_taps(Taps *taps) {
    free(taps->first);
    free(taps->count);
    free(taps->weights);
}

/* Computes the weights that resize the box from `start` to `stop`, in a row of `num_in` pixels, to `num_out` pixels. */
static int make_taps(Taps *taps, double start, double stop, int num_in, int num_out) {
    double scale = (stop - start) / num_out, width = scale > 1.0 ? scale : 1.0;
    taps->max_taps = (int)ceil(width) * 2 + 1;
    taps->first = malloc(sizeof(int32_t) * num_out);
    taps->count = malloc(sizeof(int32_t) * num_out);
    taps->weights = calloc((size_t)num_out * taps->max_taps, sizeof(uint16_t));
    double *exact = malloc(sizeof(double) * taps->max_taps);
    if (!taps->first || !taps->count || !taps->weights || !exact) {
        free(exact);
        return 0;
    }
    for (int at = 0; at < num_out; at++) {
        double center = start + (at + 0.5) * scale, sum = 0.0;
        int first = (int)floor(center - width + 0.5), end = (int)floor(center + width + 0.5);
        first = first < 0 ? 0 : first > num_in - 1 ? num_in - 1 : first;
        end = end > num_in ? num_in : end;
        if (end <= first) end = first + 1;
        if (end > first + taps->max_taps) end = first + taps->max_taps;
        for (int i = 0; i < end - first; i++) {
            double far = fabs((first + i + 0.5 - center) / width);
            exact[i] = far < 1.0 ? 1.0 - far : 0.0;
            sum += exact[i];
        }
        uint16_t *weights = taps->weights + (size_t)at * taps->max_taps;
        int left = 256, heaviest = 0;
        if (sum <= 0.0) {
            weights[0] = 256;
            left = 0;
        } else {
            for (int i = 0; i < end - first; i++) {
                weights[i] = (uint16_t)(exact[i] / sum * 256.0 + 0.5);
                left -= weights[i];
                if (weights[i] > weights[heaviest]) heaviest = i;
            }
        }
        weights[heaviest] = (uint16_t)(weights[heaviest] + left);
        taps->first[at] = first;
        taps->count[at] = end - first;
    }
    free(exact);
    return 1;
}

/* -- resize -------------------------------------------------------------------------------------------------------- */

/* First pass: blends `count` rows of `num_bytes` bytes into one output row. */
FAST static void blend_rows(uint8_t *restrict out, const uint8_t *const *rows, const uint16_t *weights, int count,
                            int num_bytes) {
    for (int at = 0; at < num_bytes; at += 64) {
        v16hu one = {0}, two, three, four;
        one += 128;
        two = three = four = one;
        for (int i = 0; i < count; i++) {
            const uint8_t *row = rows[i] + at;
            v16hu weight = (v16hu){0} + weights[i];
            v16qu bytes[4];
            memcpy(bytes, row, sizeof bytes);
            one += __builtin_convertvector(bytes[0], v16hu) * weight;
            two += __builtin_convertvector(bytes[1], v16hu) * weight;
            three += __builtin_convertvector(bytes[2], v16hu) * weight;
            four += __builtin_convertvector(bytes[3], v16hu) * weight;
        }
        v16qu done[4] = {__builtin_convertvector(one >> 8, v16qu), __builtin_convertvector(two >> 8, v16qu),
                         __builtin_convertvector(three >> 8, v16qu), __builtin_convertvector(four >> 8, v16qu)};
        memcpy(out + at, done, sizeof done);
    }
}

/* Second pass: resizes one row to `num_out` pixels, from `to` on, `step` bytes apart. */
FAST static void blend_columns(uint8_t *restrict to, ptrdiff_t step, const uint8_t *restrict row, const Taps *taps,
                               const v8hu *pairs, int num_pairs, int num_out) {
    const v8hu halves = {4, 5, 6, 7, 0, 1, 2, 3};
    for (int at = 0; at < num_out; at++) {
        const uint8_t *from = row + (size_t)taps->first[at] * PIXEL;
        v8hu sum = {128, 128, 128, 128, 0, 0, 0, 0};
        for (int i = 0; i < num_pairs; i++) {
            v8qu bytes;
            memcpy(&bytes, from + i * 2 * PIXEL, sizeof bytes);
            sum += __builtin_convertvector(bytes, v8hu) * pairs[(size_t)at * num_pairs + i];
        }
        sum = (sum + __builtin_shuffle(sum, halves)) >> 8;
        v8qu done = __builtin_convertvector(sum, v8qu);
        memcpy(to + at * step, &done, PIXEL);
    }
}

/* Splits a row of pixels into three planes. */
FAST static void split_planes(uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue,
                          const uint8_t *restrict pixels, int num_out) {
    for (int at = 0; at < num_out; at++) {
        red[at] = pixels[PIXEL * at];
        green[at] = pixels[PIXEL * at + 1];
        blue[at] = pixels[PIXEL * at + 2];
    }
}

static void put_row(uint8_t *out, ptrdiff_t plane, ptrdiff_t step, const uint8_t *pixels, int num_out) {
    if (step == 1) {
        split_planes(out, out + plane, out + 2 * plane, pixels, num_out);
        return;
    }
    for (int at = 0; at < num_out; at++, out += step)
        for (int channel = 0; channel < 3; channel++) out[channel * plane] = pixels[PIXEL * at + channel];
}

/* -- one image ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *data;
    unsigned long size;
    uint8_t *out;
    int out_height, out_width;  /* size of the output in the orientation of the file */
    ptrdiff_t plane, down, right; /* bytes to the next channel, to the value below, to the value at the right */
    double top, left, height, width; /* the crop, in pixels of the stored image */
    int from_bottom, from_right;     /* whether `top` and `left` are counted from the bottom and right */
    double max_pixels;
    int fast_scale;
    char error[JMSG_LENGTH_MAX];
    int unsupported;
} Job;

typedef struct {
    uint8_t *ring, *blended, *pixels;
    const uint8_t **window;
    v8hu *pairs;
    Taps down, across;
} Memory;

static void free_memory(Memory *memory) {
    free(memory->ring);
    free(memory->blended);
    free(memory->pixels);
    free((void *)memory->window);
    free(memory->pairs);
    free_taps(&memory->down);
    free_taps(&memory->across);
}

static int fail_with(Job *job, const char *text) {
    snprintf(job->error, sizeof job->error, "%s", text);
    return 0;
}

static v8hu *make_pairs(const Taps *taps, int num_out, int num_pairs) {
    /* Each vector holds two neighboring taps. If their number is odd, the last one has weight 0. */
    void *memory = NULL;
    if (posix_memalign(&memory, sizeof(v8hu), sizeof(v8hu) * (size_t)num_out * num_pairs)) return NULL;
    v8hu *pairs = memory;
    for (int at = 0; at < num_out; at++)
        for (int i = 0; i < num_pairs; i++) {
            const uint16_t *weights = taps->weights + (size_t)at * taps->max_taps;
            uint16_t one = 2 * i < taps->count[at] ? weights[2 * i] : 0;
            uint16_t two = 2 * i + 1 < taps->count[at] ? weights[2 * i + 1] : 0;
            v8hu pair = {one, one, one, one, two, two, two, two};
            pairs[(size_t)at * num_pairs + i] = pair;
        }
    return pairs;
}

static int count_max_taps(const Taps *taps, int num_out) {
    int most = 1;
    for (int at = 0; at < num_out; at++)
        if (taps->count[at] > most) most = taps->count[at];
    return most;
}

/* Allocated by the caller: variables that change between setjmp and longjmp must not be locals of setjmp's caller. */
typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
    struct jpeg_progress_mgr progress;
    Memory memory;
} State;

static int decode_within(State *state, Job *job) {
    j_decompress_ptr info = &state->info;
    Memory *memory = &state->memory;
    jpeg_mem_src(info, job->data, job->size);
    jpeg_read_header(info, TRUE);
    if (info->jpeg_color_space != JCS_YCbCr && info->jpeg_color_space != JCS_RGB &&
        info->jpeg_color_space != JCS_GRAYSCALE) {
        job->unsupported = 1;
        return fail_with(job, "the color space is neither gray nor RGB");
    }
    double whole_width = info->image_width, whole_height = info->image_height;
    if (whole_width * whole_height > job->max_pixels) return fail_with(job, "the image has too many pixels");
    if (job->from_bottom) job->top = whole_height - job->top - job->height;
    if (job->from_right) job->left = whole_width - job->left - job->width;
    if (job->top < 0 || job->left < 0 || job->top + job->height > whole_height || job->left + job->width > whole_width)
        return fail_with(job, "the crop does not lie within the image");

    /* Choose the coarsest scale with fast code in the library that leaves a factor of 1.25 to the resize. Halving by
     * the DCT is sharper than the filter: on white noise of 8 levels by 1.9 levels in the mean if nothing is left to
     * resize, and by 0.7 with a factor of 4/3. */
    int eighths = 8;
    if (job->fast_scale)
        while (eighths > 1 && job->width * (eighths / 2) >= 1.25 * 8 * job->out_width &&
               job->height * (eighths / 2) >= 1.25 * 8 * job->out_height)
            eighths /= 2;
    if (job->width * eighths > 8.0 * MAX_SHRINK * job->out_width ||
        job->height * eighths > 8.0 * MAX_SHRINK * job->out_height) {
        job->unsupported = 1;
        return fail_with(job, "the crop shrinks too much for 8-bit weights");
    }
    info->scale_num = eighths;
    info->scale_denom = 8;
    info->out_color_space = JCS_EXT_RGBX;
    info->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(info);

    double shrink = eighths / 8.0;
    double top = job->top * shrink, left = job->left * shrink;
    double bottom = (job->top + job->height) * shrink, right = (job->left + job->width) * shrink;
    JDIMENSION first_row = (JDIMENSION)top, first_column = (JDIMENSION)left;
    JDIMENSION end_row = (JDIMENSION)ceil(bottom), end_column = (JDIMENSION)ceil(right);
    if (end_row > info->output_height) end_row = info->output_height;
    if (end_column > info->output_width) end_column = info->output_width;
    if (first_row >= end_row) first_row = end_row - 1;
    if (first_column >= end_column) first_column = end_column - 1;
    int num_rows = (int)(end_row - first_row), num_columns = (int)(end_column - first_column);

    JDIMENSION from_column = first_column, wide = (JDIMENSION)num_columns;
    if (wide < info->output_width) {
        /* Chroma is interpolated between neighbors, so two more columns are needed on each side. */
        JDIMENSION end = end_column + 2 < info->output_width ? end_column + 2 : info->output_width;
        from_column = first_column >= 2 ? first_column - 2 : 0;
        wide = end - from_column;
        jpeg_crop_scanline(info, &from_column, &wide);
    }
    if (!make_taps(&memory->down, top - first_row, bottom - first_row, num_rows, job->out_height) ||
        !make_taps(&memory->across, left - first_column, right - first_column, num_columns, job->out_width))
        return fail_with(job, "out of memory");
    int num_pairs = (count_max_taps(&memory->across, job->out_width) + 1) / 2;
    int depth = count_max_taps(&memory->down, job->out_height);
    size_t row_bytes = (size_t)info->output_width * PIXEL + PAD;
    size_t used_bytes = (size_t)num_columns * PIXEL;
    memory->pairs = make_pairs(&memory->across, job->out_width, num_pairs);
    memory->ring = malloc(row_bytes * depth);
    memory->blended = calloc(1, used_bytes + PAD + 2 * PIXEL * (size_t)num_pairs);
    memory->pixels = malloc((size_t)job->out_width * PIXEL);
    memory->window = malloc(sizeof(uint8_t *) * depth);
    if (!memory->pairs || !memory->ring || !memory->blended || !memory->pixels || !memory->window)
        return fail_with(job, "out of memory");

    if (first_row > 0 && jpeg_skip_scanlines(info, first_row) != first_row)
        return fail_with(job, "the image has too few rows");
    size_t offset = (size_t)(first_column - from_column) * PIXEL;
    int done = 0;
    for (int row = 0; row < num_rows && done < job->out_height; row++) {
        JSAMPROW into = memory->ring + (size_t)(row % depth) * row_bytes;
        if (jpeg_read_scanlines(info, &into, 1) != 1) return fail_with(job, "the image has too few rows");
        while (done < job->out_height && memory->down.first[done] + memory->down.count[done] <= row + 1) {
            int count = memory->down.count[done];
            for (int i = 0; i < count; i++)
                memory->window[i] = memory->ring + (size_t)((memory->down.first[done] + i) % depth) * row_bytes + offset;
            blend_rows(memory->blended, memory->window, memory->down.weights + (size_t)done * memory->down.max_taps,
                       count, (int)used_bytes);
            /* A mirrored row is resized from its end, so that memory is written in ascending order. */
            int mirrored = job->right == -1;
            uint8_t *out = job->out + done * job->down;
            blend_columns(memory->pixels + (mirrored ? (job->out_width - 1) * PIXEL : 0), mirrored ? -PIXEL : PIXEL,
                          memory->blended, &memory->across, memory->pairs, num_pairs, job->out_width);
            put_row(mirrored ? out - (job->out_width - 1) : out, job->plane, mirrored ? 1 : job->right, memory->pixels,
                    job->out_width);
            done++;
        }
    }
    return done == job->out_height ? 1 : fail_with(job, "the image has too few rows");
}

static int decode_guarded(State *state, Job *job) {
    if (setjmp(state->errors.out)) return fail_with(job, state->errors.text);
    jpeg_create_decompress(&state->info);
    state->progress.progress_monitor = count_scans;
    state->info.progress = &state->progress;
    return decode_within(state, job);
}

static int decode(Job *job) {
    State *state = calloc(1, sizeof *state);
    if (!state) return fail_with(job, "out of memory");
    state->info.err = jpeg_std_error(&state->errors.base);
    state->errors.base.error_exit = fail;
    state->errors.base.emit_message = warn;
    state->errors.base.output_message = silent;
    int is_done = decode_guarded(state, job);
    jpeg_destroy_decompress(&state->info);
    free_memory(&state->memory);
    free(state);
    return is_done;
}

/* -- Python -------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *unsupported; /* exception */
} ModuleState;

PyDoc_STRVAR(crop_doc,
"crop(data, out, box, orientation, flip, max_pixels, fast_scale)\n--\n\n"
"Decodes a crop of a JPEG into (3, H, W) uint8 memory, as RGB.\n\n"
"data: one-dimensional bytes-like object. out: writable, C-contiguous (3, H, W) bytes. box: (top, left, height,\n"
"width) in pixels of the upright image. orientation: EXIF orientation, 1 to 8. flip: whether to mirror left to right.\n"
"max_pixels: maximum number of pixels of the whole image. fast_scale: whether the inverse DCT may shrink.\n\n"
"Raises ValueError for damaged data, and Unsupported for color spaces other than gray and RGB and for crops that\n"
"shrink by more than 64 to 1 after the inverse DCT.");

static PyObject *crop(PyObject *module, PyObject *args) {
    Py_buffer data, out;
    Job job;
    memset(&job, 0, sizeof job);
    int orientation, flip;
    double top, left, height, width;
    PyObject *out_object;
    if (!PyArg_ParseTuple(args, "y*O(dddd)ipdp:crop", &data, &out_object, &top, &left, &height, &width, &orientation,
                          &flip, &job.max_pixels, &job.fast_scale))
        return NULL;
    if (PyObject_GetBuffer(out_object, &out, PyBUF_WRITABLE | PyBUF_ND | PyBUF_C_CONTIGUOUS) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    int is_done = 0, is_bad = 1;
    if (out.ndim != 3 || out.itemsize != 1 || out.shape[0] != 3 || out.shape[1] < 1 || out.shape[2] < 1 ||
        out.shape[1] > MAX_SIDE || out.shape[2] > MAX_SIDE)
        PyErr_SetString(PyExc_ValueError, "out must be (3, H, W) bytes");
    else if (orientation < 1 || orientation > 8)
        PyErr_SetString(PyExc_ValueError, "orientation must be a number from 1 to 8");
    else if (!(height > 0 && width > 0 && top >= 0 && left >= 0 && top + height <= MAX_SIDE &&
               left + width <= MAX_SIDE))
        PyErr_SetString(PyExc_ValueError, "invalid box");
    else
        is_bad = 0;
    if (!is_bad) {
        ptrdiff_t rows = out.shape[1], columns = out.shape[2];
        ptrdiff_t origin = 0, down = columns, right = 1; /* strides of the upright output */
        if (flip) {
            origin += columns - 1;
            right = -1;
        }
        /* EXIF: 1 upright, 2 mirrored, 3 rotated by 180°, 4 flipped, 5 to 8 the same with rows and columns exchanged.
         * Rows are decoded in the order of the file, and each value is written to its place in the upright output. */
        int swapped = orientation >= 5;
        int from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
        int from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
        ptrdiff_t along = swapped ? down : right, across = swapped ? right : down;
        ptrdiff_t stored_columns = swapped ? rows : columns, stored_rows = swapped ? columns : rows;
        job.right = along;
        job.down = across;
        if (from_right) {
            origin += (stored_columns - 1) * along;
            job.right = -along;
        }
        if (from_bottom) {
            origin += (stored_rows - 1) * across;
            job.down = -across;
        }
        job.plane = rows * columns;
        job.out = (uint8_t *)out.buf + origin;
        job.out_height = (int)stored_rows;
        job.out_width = (int)stored_columns;
        job.data = data.buf;
        job.size = (unsigned long)data.len;
        job.top = swapped ? left : top;
        job.left = swapped ? top : left;
        job.height = swapped ? width : height;
        job.width = swapped ? height : width;
        job.from_right = from_right;
        job.from_bottom = from_bottom;
        Py_BEGIN_ALLOW_THREADS
        is_done = decode(&job);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&data);
    if (is_bad) return NULL;
    if (!is_done) {
        ModuleState *state = PyModule_GetState(module);
        PyErr_SetString(job.unsupported ? state->unsupported : PyExc_ValueError, job.error);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"crop", crop, METH_VARARGS, crop_doc}, {NULL, NULL, 0, NULL}};

static int set_up(PyObject *module) {
    PyObject *error = PyErr_NewExceptionWithDoc("concurrent_loader.decode._jpeg_crop.Unsupported",
                                                "Raised for a kind of JPEG that is left to other decoders.", NULL, NULL);
    if (error == NULL) return -1;
    ((ModuleState *)PyModule_GetState(module))->unsupported = error;
    return PyModule_AddObjectRef(module, "Unsupported", error);
}

static int visit_state(PyObject *module, visitproc visit, void *arg) {
    Py_VISIT(((ModuleState *)PyModule_GetState(module))->unsupported);
    return 0;
}

static int clear_state(PyObject *module) {
    Py_CLEAR(((ModuleState *)PyModule_GetState(module))->unsupported);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, set_up},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_jpeg_crop", "Decodes JPEG crops at their final size; see jpeg_crop.c.",
    sizeof(ModuleState), methods, slots, visit_state, clear_state, NULL,
};

PyMODINIT_FUNC PyInit__jpeg_crop(void) { return PyModuleDef_Init(&definition); }

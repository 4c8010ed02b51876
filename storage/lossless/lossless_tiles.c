/* Packs and unpacks the tiles of docs/how-to/lossless.md, with the GIL released. The reference implementation is tiles.py.
 *
 * One shuffle brings the bit planes of a block into the order of their significance. A transposition of 8 by 8 bits in
 * each 64-bit lane (H. S. Warren, "Hacker's Delight", 2nd edition, 7-3) turns the planes into values. Shifted additions
 * within a row (W. D. Hillis, G. L. Steele, "Data parallel algorithms", 1986) and additions of whole rows undo the
 * predictor. Nothing that a file states is used before it is checked: widths, modes and the lengths of all sections of
 * a group are checked before its first block is unpacked.
 *
 * Uses Python's stable ABI, from 3.11 on, and needs no GIL.
 */
#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* a free-threaded Python has no stable ABI */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
/* The loader of the module chooses the version for the processor. */
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

enum { TILE = 64, SIDE = 4, GRID = TILE / SIDE, MAX_CHANNELS = 4, MAX_GROUP = 255, MAX_LENGTH = 1 << 24 };
enum { LEFT = 0, UP = 1, PLANE = 2, SUBTRACT_GREEN = 256 };
enum { BLOCKS = GRID * GRID, PAD = 32 };

typedef uint8_t v16qu __attribute__((vector_size(16)));
typedef uint8_t v32qu __attribute__((vector_size(32)));
typedef uint16_t v8hu __attribute__((vector_size(16)));
typedef uint64_t v2du __attribute__((vector_size(16)));
typedef uint64_t v4du __attribute__((vector_size(32)));

typedef struct {
    int channels, bits;
    int64_t height, width, tiles_down, tiles_across;
} Shape;

typedef struct {
    int64_t tile_row, tile_column;
    int num_tiles;
} Group;

/* Position of a tile in its image, and its number of blocks. */
typedef struct {
    int64_t top, left;
    int height, width, num_down, num_across;
} Extent;

typedef struct {
    uint8_t *top, *second, *rest;
} Sections;

typedef struct {
    int cost, predictor;
    uint8_t grid[BLOCKS];
    uint16_t values[TILE * TILE]; /* 8-bit or 16-bit samples */
} Choice;

typedef struct {
    uint8_t *head, *top, *second, *rest;
    ptrdiff_t head_bytes, top_bytes, second_bytes, rest_bytes;
    Choice choices[MAX_CHANNELS + 2];
} Packed;

/* Part of the image to decode, and its output: (channels, height, width). */
typedef struct {
    int channels;
    int64_t top, left, height, width;
    void *out;
} Target;

/* Length in bytes and offset of a unit in each section. */
typedef struct {
    int top_bytes, second_bytes, rest_bytes;
    const uint8_t *top, *second, *rest;
    uint8_t grid[BLOCKS];
} Unit;

static Extent extent_of(const Shape *shape, const Group *group, int number) {
    Extent extent = {.top = group->tile_row * TILE, .left = (group->tile_column + number) * TILE};
    extent.height = (int)(shape->height - extent.top < TILE ? shape->height - extent.top : TILE);
    extent.width = (int)(shape->width - extent.left < TILE ? shape->width - extent.left : TILE);
    extent.num_down = (extent.height + SIDE - 1) / SIDE;
    extent.num_across = (extent.width + SIDE - 1) / SIDE;
    return extent;
}

/* Transposes a matrix of 8 by 8 bits, one row per byte. */
static uint64_t transposed(uint64_t x) {
    uint64_t swapped = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
    x ^= swapped ^ (swapped << 7);
    swapped = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
    x ^= swapped ^ (swapped << 14);
    swapped = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
    return x ^ swapped ^ (swapped << 28);
}

/* -- sums along a row ---------------------------------------------------------------------------------------------- */

#if defined(__GNUC__) && !defined(__clang__)
#define SHUFFLED(vector, order) __builtin_shuffle(vector, order)
#else
static inline v16qu SHUFFLED(v16qu vector, v16qu order) {
    v16qu out;
    for (int i = 0; i < 16; i++) out[i] = vector[order[i] & 15];
    return out;
}
#endif

static inline __attribute__((always_inline)) void sum_row_8(uint8_t *row) {
    const v16qu middle = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
    const v16qu upper = {0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255};
    const v16qu last = {15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15};
    v16qu carry = {0};
    for (int at = 0; at < TILE; at += 16) {
        v16qu sum;
        memcpy(&sum, row + at, 16);
        sum += (v16qu)((v2du)sum << 8);
        sum += (v16qu)((v2du)sum << 16);
        sum += (v16qu)((v2du)sum << 32);
        sum += SHUFFLED(sum, middle) & upper;
        sum += carry;
        carry = SHUFFLED(sum, last);
        memcpy(row + at, &sum, 16);
    }
}

static inline __attribute__((always_inline)) void sum_row_16(uint16_t *row) {
    for (int x = 1; x < TILE; x++) row[x] = (uint16_t)(row[x] + row[x - 1]);
}

#define SAMPLE uint8_t
#define BITS 8
#include "lossless_unit.h"
#undef SAMPLE
#undef BITS
#define SAMPLE uint16_t
#define BITS 16
#include "lossless_unit.h"
#undef SAMPLE
#undef BITS

/* Joins two vectors in registers; in memory, reading 32 bytes that were written as two times 16 would stall. */
#if defined(__has_builtin) && (defined(__clang__) || __GNUC__ >= 12)
#define JOINED(one, two) \
    __builtin_shufflevector(one, two, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, \
                            22, 23, 24, 25, 26, 27, 28, 29, 30, 31)
#else
static inline v32qu JOINED(v16qu one, v16qu two) {
    v16qu both[2] = {one, two};
    v32qu joined;
    memcpy(&joined, both, 32);
    return joined;
}
#endif

/* -- unpacking ----------------------------------------------------------------------------------------------------- */

/* A block's remaining planes, at most 12 bytes, are followed by its top plane and its second plane. For each width: the
 * positions of the two bytes of plane p, first of values 0 to 7, plane after plane, then of values 8 to 15. */
#define P(p, w) ((p) == (w) - 1 ? 12 : (p) == (w) - 2 ? 14 : (p) < (w) ? 2 * (p) : 0)
#define M(p, w) ((p) < (w) ? 255 : 0)
#define ORDER(w) {P(0, w), P(1, w), P(2, w), P(3, w), P(4, w), P(5, w), P(6, w), P(7, w), P(0, w) + 1, P(1, w) + 1, \
                  P(2, w) + 1, P(3, w) + 1, P(4, w) + 1, P(5, w) + 1, P(6, w) + 1, P(7, w) + 1}
#define THERE(w) {M(0, w), M(1, w), M(2, w), M(3, w), M(4, w), M(5, w), M(6, w), M(7, w), \
                  M(0, w), M(1, w), M(2, w), M(3, w), M(4, w), M(5, w), M(6, w), M(7, w)}
static const v16qu ORDERS[9] = {ORDER(0), ORDER(1), ORDER(2), ORDER(3), ORDER(4), ORDER(5), ORDER(6), ORDER(7), ORDER(8)};
static const v16qu THERES[9] = {THERE(0), THERE(1), THERE(2), THERE(3), THERE(4), THERE(5), THERE(6), THERE(7), THERE(8)};
static const uint8_t TOPS[9] = {0, 2, 2, 2, 2, 2, 2, 2, 2}, SECONDS[9] = {0, 0, 2, 2, 2, 2, 2, 2, 2};
static const uint8_t RESTS[9] = {0, 0, 0, 2, 4, 6, 8, 10, 12};

/* Unpacks the residuals of an 8-bit unit to a tile. Each of the three sections is followed by PAD bytes. */
FAST static void unpack_8(uint8_t *restrict tile, const uint8_t *restrict grid, int num_down, const uint8_t *top,
                          const uint8_t *second, const uint8_t *rest) {
    for (int by = 0; by < num_down; by++) {
        uint32_t values[GRID * SIDE];
        for (int bx = 0; bx < GRID; bx += 2) {
            v16qu both[2];
            for (int i = 0; i < 2; i++) {
                int width = grid[by * GRID + bx + i];
                uint16_t one, two;
                v8hu block;
                memcpy(&block, rest, 16);
                memcpy(&one, top, 2);
                memcpy(&two, second, 2);
                block[6] = one;
                block[7] = two;
                both[i] = SHUFFLED((v16qu)block, ORDERS[width]) & THERES[width];
                top += TOPS[width];
                second += SECONDS[width];
                rest += RESTS[width];
            }
            v4du x = (v4du)JOINED(both[0], both[1]), swapped;
            swapped = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
            x ^= swapped ^ (swapped << 7);
            swapped = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
            x ^= swapped ^ (swapped << 14);
            swapped = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
            x ^= swapped ^ (swapped << 28);
            v32qu folded = (v32qu)x;
            folded = ((v32qu)(x >> 1) & 127) ^ (0 - (folded & 1));
            memcpy(values + bx * SIDE, &folded, 32);
        }
        for (int y = 0; y < SIDE; y++) {
            uint32_t row[GRID];
            for (int bx = 0; bx < GRID; bx++) row[bx] = values[bx * SIDE + y];
            memcpy(tile + (by * SIDE + y) * TILE, row, sizeof row);
        }
    }
}

static void unpack_16(uint16_t *tile, const uint8_t *grid, int num_down, const uint8_t *top, const uint8_t *second,
                      const uint8_t *rest) {
    for (int block = 0; block < num_down * GRID; block++) {
        int width = grid[block] == 15 ? 16 : grid[block];
        uint16_t values[16] = {0};
        for (int plane = 0; plane < width; plane++) {
            const uint8_t **section = plane == width - 1 ? &top : plane == width - 2 ? &second : &rest;
            unsigned bits = (unsigned)(*section)[0] | (unsigned)(*section)[1] << 8;
            *section += 2;
            for (int i = 0; i < 16; i++) values[i] |= (uint16_t)((bits >> i & 1) << plane);
        }
        uint16_t *at = tile + block / GRID * SIDE * TILE + block % GRID * SIDE;
        for (int i = 0; i < 16; i++)
            at[(i >> 2) * TILE + (i & 3)] = (uint16_t)(values[i] >> 1 ^ (0 - (values[i] & 1)));
    }
}

/* Reads the width codes of a unit into its grid, and counts; returns 0 if a code is invalid. */
FAST static int read_widths(Unit *unit, const uint8_t *widths, const Extent *extent, int bits) {
    uint8_t codes[BLOCKS + 2] = {0};
    int count = extent->num_down * extent->num_across, top = 0, second = 0, rest = 0, worst = 0;
    for (int i = 0; i < (count + 1) / 2; i++) {
        codes[2 * i] = widths[i] & 15;
        codes[2 * i + 1] = widths[i] >> 4;
    }
    if ((count & 1) && codes[count]) return 0;
    for (int i = 0; i < count; i++) {
        int code = codes[i], width = code + (code == 15);
        worst = code > worst ? code : worst;
        top += width > 0;
        second += width > 1;
        rest += width > 2 ? width - 2 : 0;
    }
    if (bits == 8 && worst > 8) return 0;
    unit->top_bytes = 2 * top;
    unit->second_bytes = 2 * second;
    unit->rest_bytes = 2 * rest;
    if (extent->num_across == GRID)
        memcpy(unit->grid, codes, (size_t)count);
    else
        for (int by = 0; by < extent->num_down; by++) {
            memset(unit->grid + by * GRID, 0, GRID);
            memcpy(unit->grid + by * GRID, codes + by * extent->num_across, (size_t)extent->num_across);
        }
    return 1;
}

/* Finds every unit of a group; returns NULL, or an error message. */
static const char *find_units(Unit *units, const Shape *shape, const Group *group, const uint8_t *coded,
                              int64_t coded_bytes, const uint8_t *rest, int64_t rest_bytes) {
    int sample_bytes = shape->bits / 8;
    int64_t at = (int64_t)group->num_tiles * (2 + shape->channels * sample_bytes);
    int64_t top = 0, second = 0, other = 0;
    if (at > coded_bytes) return "a group ends within its modes";
    for (int number = 0; number < group->num_tiles; number++) {
        unsigned mode = coded[2 * number] | (unsigned)coded[2 * number + 1] << 8;
        for (int channel = 0; channel < MAX_CHANNELS; channel++, mode = (mode & 0xFF00) | ((mode & 255) >> 2))
            if ((mode & 3) > (channel < shape->channels ? PLANE : 0)) return "unknown predictor";
        if (mode >> 8 > (shape->channels >= 3)) return "unknown color transform";
        Extent extent = extent_of(shape, group, number);
        int num_bytes = (extent.num_down * extent.num_across + 1) / 2;
        for (int channel = 0; channel < shape->channels; channel++, at += num_bytes) {
            Unit *unit = units + number * shape->channels + channel;
            if (at + num_bytes > coded_bytes) return "a group ends within its widths";
            if (!read_widths(unit, coded + at, &extent, shape->bits)) return "invalid width code";
            top += unit->top_bytes;
            second += unit->second_bytes;
            other += unit->rest_bytes;
        }
    }
    if (at + top + second != coded_bytes || other != rest_bytes)
        return "the lengths of a group's sections do not match its widths";
    const uint8_t *tops = coded + at, *seconds = tops + top;
    for (int i = 0; i < group->num_tiles * shape->channels; i++) {
        units[i].top = tops;
        units[i].second = seconds;
        units[i].rest = rest;
        tops += units[i].top_bytes;
        seconds += units[i].second_bytes;
        rest += units[i].rest_bytes;
    }
    return NULL;
}

typedef struct {
    uint8_t top[2 * BLOCKS + PAD], second[2 * BLOCKS + PAD], rest[28 * BLOCKS + PAD];
    union {
        uint8_t eight[MAX_CHANNELS][TILE * TILE];
        uint16_t sixteen[MAX_CHANNELS][TILE * TILE];
    } tiles;
    Unit units[];
} Room;

/* Returns the bytes, or a padded copy if a whole vector would read past the end of their buffer. */
static const uint8_t *roomy(uint8_t *copy, const uint8_t *bytes, int num_bytes, const uint8_t *end) {
    if (end - bytes >= num_bytes + PAD) return bytes;
    memcpy(copy, bytes, (size_t)num_bytes);
    return copy;
}

static void unpack_group(Room *room, const Shape *shape, const Group *group, const uint8_t *coded,
                         const uint8_t *coded_end, const uint8_t *data_end, const Target *target) {
    int sample_bytes = shape->bits / 8;
    for (int number = 0; number < group->num_tiles; number++) {
        Extent extent = extent_of(shape, group, number);
        if (extent.left >= target->left + target->width || extent.left + extent.width <= target->left) continue;
        unsigned mode = coded[2 * number] | (unsigned)coded[2 * number + 1] << 8;
        for (int channel = 0; channel < target->channels; channel++) {
            const Unit *unit = room->units + number * shape->channels + channel;
            const uint8_t *start = coded + 2 * group->num_tiles + (number * shape->channels + channel) * sample_bytes;
            int predictor = mode >> (2 * channel) & 3;
            const uint8_t *top = roomy(room->top, unit->top, unit->top_bytes, coded_end);
            const uint8_t *second = roomy(room->second, unit->second, unit->second_bytes, coded_end);
            const uint8_t *rest = roomy(room->rest, unit->rest, unit->rest_bytes, data_end);
            if (shape->bits == 8) {
                uint8_t *tile = room->tiles.eight[channel];
                unpack_8(tile, unit->grid, extent.num_down, top, second, rest);
                tile[0] = (uint8_t)(tile[0] + start[0]);
                sum_8(tile, predictor, extent.height);
            } else {
                uint16_t *tile = room->tiles.sixteen[channel];
                unpack_16(tile, unit->grid, extent.num_down, top, second, rest);
                tile[0] = (uint16_t)(tile[0] + (start[0] | start[1] << 8));
                sum_16(tile, predictor, extent.height);
            }
        }
        if (shape->bits == 8)
            put_8(target, &extent, mode, room->tiles.eight);
        else
            put_16(target, &extent, mode, room->tiles.sixteen);
    }
}

/* -- Python -------------------------------------------------------------------------------------------------------- */

static int is_shape(Shape *shape) {
    if (shape->channels < 1 || shape->channels > MAX_CHANNELS || (shape->bits != 8 && shape->bits != 16) ||
        shape->height < 1 || shape->width < 1 || shape->height > MAX_LENGTH || shape->width > MAX_LENGTH) {
        PyErr_SetString(PyExc_ValueError, "invalid shape");
        return 0;
    }
    shape->tiles_down = (shape->height + TILE - 1) / TILE;
    shape->tiles_across = (shape->width + TILE - 1) / TILE;
    return 1;
}

static int is_group(const Shape *shape, const Group *group) {
    return group->num_tiles >= 1 && group->num_tiles <= MAX_GROUP && group->tile_row >= 0 &&
           group->tile_row < shape->tiles_down && group->tile_column >= 0 &&
           group->tile_column <= shape->tiles_across - group->num_tiles;
}

PyDoc_STRVAR(pack_doc,
"pack(pixels, shape, group)\n--\n\n"
"Packs the tiles of a group: (head, top planes, second planes, remaining planes).\n\n"
"pixels: C-contiguous (C, H, W) uint8 or native uint16. shape: (channels, bits, height, width). group: (tile row,\n"
"first tile column, number of tiles).");

static PyObject *pack(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer pixels;
    Shape shape;
    Group group;
    long long height, width, row, column;
    if (!PyArg_ParseTuple(args, "y*(iiLL)(LLi):pack", &pixels, &shape.channels, &shape.bits, &height, &width, &row,
                          &column, &group.num_tiles))
        return NULL;
    shape.height = height;
    shape.width = width;
    group.tile_row = row;
    group.tile_column = column;
    if (!is_shape(&shape)) {
        PyBuffer_Release(&pixels);
        return NULL;
    }
    if (!is_group(&shape, &group) || (uintptr_t)pixels.buf % (size_t)(shape.bits / 8) ||
        pixels.len != (Py_ssize_t)(shape.height * shape.width * shape.channels * (shape.bits / 8))) {
        PyBuffer_Release(&pixels);
        PyErr_SetString(PyExc_ValueError, "pixels, shape and group do not match");
        return NULL;
    }
    size_t num_units = (size_t)group.num_tiles * (size_t)shape.channels;
    Packed *packed = malloc(sizeof *packed);
    uint8_t *memory = malloc((size_t)group.num_tiles * 2 + num_units * (2 + BLOCKS / 2 + (2 + 2 + 28) * BLOCKS));
    PyObject *result = NULL;
    if (packed && memory) {
        packed->head = memory;
        packed->top = packed->head + (size_t)group.num_tiles * 2 + num_units * (2 + BLOCKS / 2);
        packed->second = packed->top + num_units * 2 * BLOCKS;
        packed->rest = packed->second + num_units * 2 * BLOCKS;
        Py_BEGIN_ALLOW_THREADS
        if (shape.bits == 8)
            pack_group_8(&shape, &group, pixels.buf, packed);
        else
            pack_group_16(&shape, &group, pixels.buf, packed);
        Py_END_ALLOW_THREADS
        /* Not "y#": compiled on Python 3.13, that format needs 3.13 at run time, and the module is for 3.11 on. */
        result = Py_BuildValue("(NNNN)", PyBytes_FromStringAndSize((const char *)packed->head, (Py_ssize_t)packed->head_bytes),
                               PyBytes_FromStringAndSize((const char *)packed->top, (Py_ssize_t)packed->top_bytes),
                               PyBytes_FromStringAndSize((const char *)packed->second, (Py_ssize_t)packed->second_bytes),
                               PyBytes_FromStringAndSize((const char *)packed->rest, (Py_ssize_t)packed->rest_bytes));
    } else
        PyErr_NoMemory();
    free(memory);
    free(packed);
    PyBuffer_Release(&pixels);
    return result;
}

enum { FIELDS = 5 }; /* per group: tile row, first tile column, number of tiles, offset and length of the rest */

typedef struct {
    Py_buffer data, groups, out;
    Py_buffer *coded;
    Py_ssize_t num_coded, num_groups;
    int has_data, has_groups, has_out;
    Room *room;
} Held;

static void release(Held *held) {
    for (Py_ssize_t i = 0; i < held->num_coded; i++) PyBuffer_Release(held->coded + i);
    if (held->has_data) PyBuffer_Release(&held->data);
    if (held->has_groups) PyBuffer_Release(&held->groups);
    if (held->has_out) PyBuffer_Release(&held->out);
    PyMem_Free(held->coded);
    PyMem_Free(held->room);
}

/* Acquires all buffers; returns 0 with an exception set if they do not match. */
static int hold(Held *held, const Shape *shape, PyObject *data, PyObject *groups, PyObject *coded, PyObject *out) {
    if (PyObject_GetBuffer(data, &held->data, PyBUF_SIMPLE) < 0) return 0;
    held->has_data = 1;
    if (PyObject_GetBuffer(groups, &held->groups, PyBUF_SIMPLE) < 0) return 0;
    held->has_groups = 1;
    if (PyObject_GetBuffer(out, &held->out, PyBUF_WRITABLE) < 0) return 0;
    held->has_out = 1;
    held->num_groups = PySequence_Size(coded);
    if (held->num_groups < 0) return 0;
    if (held->groups.len != held->num_groups * FIELDS * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "groups must have five numbers for each coded section");
        return 0;
    }
    held->coded = PyMem_Calloc((size_t)held->num_groups + 1, sizeof *held->coded);
    held->room = PyMem_Calloc(1, sizeof(Room) + sizeof(Unit) * MAX_GROUP * (size_t)shape->channels);
    if (!held->coded || !held->room) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < held->num_groups; i++) {
        PyObject *item = PySequence_GetItem(coded, i);
        if (item == NULL) return 0;
        int failed = PyObject_GetBuffer(item, held->coded + i, PyBUF_SIMPLE) < 0;
        Py_DECREF(item);
        if (failed) return 0;
        held->num_coded++;
    }
    return 1;
}

/* Reads group i and checks it against shape and data; returns NULL, or an error message. */
static const char *open_group(const Held *held, const Shape *shape, Py_ssize_t i, Group *group) {
    int64_t fields[FIELDS];
    memcpy(fields, (const uint8_t *)held->groups.buf + (size_t)i * sizeof fields, sizeof fields);
    if (fields[2] < 1 || fields[2] > MAX_GROUP) return "invalid group";
    group->tile_row = fields[0];
    group->tile_column = fields[1];
    group->num_tiles = (int)fields[2];
    if (!is_group(shape, group)) return "a group does not lie within the image";
    if (fields[3] < 0 || fields[4] < 0 || fields[3] > held->data.len || fields[4] > held->data.len - fields[3])
        return "a group does not lie within the data";
    return find_units(held->room->units, shape, group, held->coded[i].buf, held->coded[i].len,
                      (const uint8_t *)held->data.buf + fields[3], fields[4]);
}

PyDoc_STRVAR(unpack_doc,
"unpack(data, groups, coded, out, shape, box, channels)\n--\n\n"
"Decodes the part of an image that lies in the groups and in the box.\n\n"
"data: the whole file. groups: int64 (n, 5): tile row, first tile column, number of tiles, offset of the rest,\n"
"length of the rest. coded: n bytes-like objects, the decompressed coded section of each group. out: writable,\n"
"(channels, height, width) of the box. shape: (channels, bits, height, width) of the image. box: (top, left, height,\n"
"width). channels: number of channels to decode.\n\n"
"Raises ValueError if a check fails; out is then undefined.");

static PyObject *unpack(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *data, *groups, *coded, *out;
    Shape shape;
    Target target;
    long long height, width, top, left, box_height, box_width;
    if (!PyArg_ParseTuple(args, "OOOO(iiLL)(LLLL)i:unpack", &data, &groups, &coded, &out, &shape.channels, &shape.bits,
                          &height, &width, &top, &left, &box_height, &box_width, &target.channels))
        return NULL;
    shape.height = height;
    shape.width = width;
    target.top = top;
    target.left = left;
    target.height = box_height;
    target.width = box_width;
    if (!is_shape(&shape)) return NULL;
    if (target.top < 0 || target.left < 0 || target.height < 1 || target.width < 1 ||
        target.height > shape.height || target.width > shape.width || target.top > shape.height - target.height ||
        target.left > shape.width - target.width || target.channels < 1 || target.channels > shape.channels ||
        (shape.channels >= 3 && target.channels < 3)) {
        PyErr_SetString(PyExc_ValueError, "invalid box");
        return NULL;
    }
    Held held;
    memset(&held, 0, sizeof held);
    const char *wrong = NULL;
    int is_held = hold(&held, &shape, data, groups, coded, out);
    if (is_held) {
        if (held.out.len != target.channels * target.height * target.width * (shape.bits / 8) ||
            (uintptr_t)held.out.buf % (size_t)(shape.bits / 8))
            wrong = "out does not have the size of the box";
        target.out = held.out.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < held.num_groups && wrong == NULL; i++) {
            Group group;
            wrong = open_group(&held, &shape, i, &group);
            if (wrong == NULL && group.tile_row * TILE < target.top + target.height &&
                (group.tile_row + 1) * TILE > target.top)
                unpack_group(held.room, &shape, &group, held.coded[i].buf,
                             (const uint8_t *)held.coded[i].buf + held.coded[i].len,
                             (const uint8_t *)held.data.buf + held.data.len, &target);
        }
        Py_END_ALLOW_THREADS
    }
    release(&held);
    if (!is_held) return NULL;
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(index_doc,
"index(data, groups, coded, out, shape)\n--\n\n"
"Checks groups as unpack does, and returns the position of each unit.\n\n"
"out: writable int32 (number of units of all groups, 3): offsets of the unit's top and second planes in the coded\n"
"section, and of its remaining planes in the rest. The other arguments are those of unpack.\n\n"
"Raises ValueError if a check fails.");

static PyObject *find(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *data, *groups, *coded, *out;
    Shape shape;
    long long height, width;
    if (!PyArg_ParseTuple(args, "OOOO(iiLL):index", &data, &groups, &coded, &out, &shape.channels, &shape.bits, &height,
                          &width))
        return NULL;
    shape.height = height;
    shape.width = width;
    if (!is_shape(&shape)) return NULL;
    Held held;
    memset(&held, 0, sizeof held);
    const char *wrong = NULL;
    int is_held = hold(&held, &shape, data, groups, coded, out);
    if (is_held) {
        Py_BEGIN_ALLOW_THREADS
        Py_ssize_t written = 0;
        for (Py_ssize_t i = 0; i < held.num_groups && wrong == NULL; i++) {
            Group group;
            wrong = open_group(&held, &shape, i, &group);
            if (wrong) break;
            int num_units = group.num_tiles * shape.channels;
            const uint8_t *begin = held.coded[i].buf, *rest = held.room->units[0].rest;
            for (int j = 0; j < num_units; j++, written += 3 * (Py_ssize_t)sizeof(int32_t)) {
                const Unit *unit = held.room->units + j;
                int32_t found[3] = {(int32_t)(unit->top - begin), (int32_t)(unit->second - begin),
                                    (int32_t)(unit->rest - rest)};
                if (written + (Py_ssize_t)sizeof found > held.out.len) {
                    wrong = "out is too small";
                    break;
                }
                memcpy((uint8_t *)held.out.buf + written, found, sizeof found);
            }
        }
        if (wrong == NULL && written != held.out.len) wrong = "out is too large";
        Py_END_ALLOW_THREADS
    }
    release(&held);
    if (!is_held) return NULL;
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_VARARGS, pack_doc},
    {"unpack", unpack, METH_VARARGS, unpack_doc},
    {"index", find, METH_VARARGS, index_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_tiles", "Packs and unpacks lossless tiles; see lossless_tiles.c.", 0, methods, slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__tiles(void) { return PyModuleDef_Init(&definition); }

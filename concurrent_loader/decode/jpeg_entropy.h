/* Baseline Huffman decoding in place of libjpeg's, which is where most of a photograph's decoding time goes.
 *
 * Two things make it faster. One look at the next 10 bits usually gives run, value and length at once (the "fast AC"
 * table that S. Barrett's stb_image made known), where libjpeg looks up the code and then takes the value's bits. And
 * the 64-bit buffer is filled by one load while the next 8 bytes hold no 0xFF, where libjpeg goes byte by byte.
 *
 * It is put where libjpeg keeps its own: `decode_mcu` of cinfo->entropy, a table of functions that has begun with these
 * two in every release of libjpeg-turbo so far. For one scan of all components, baseline or extended, 8 bits; the rest
 * stays with libjpeg.
 */
#ifndef CONCURRENT_LOADER_JPEG_ENTROPY_H
#define CONCURRENT_LOADER_JPEG_ENTROPY_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr info);
    boolean (*decode_mcu)(j_decompress_ptr info, JBLOCKROW *blocks);
};

#define LOOK 10     /* bits looked up at once */

/* What the next LOOK bits are: from the top 16 bits of the value, 8 of the run before it (END: the block's end), SLOW,
 * and 7 of the length of code and value. With SLOW either the length is 0, as the code is longer than a look, or the
 * value does not fit: in its place stands its size, and it comes after the code, whose length is given. */
typedef uint32_t Look;

#define SLOW 0x80u
#define LENGTH(look) ((int)((look) & 0x3F))
#define RUN(look) ((int)((look) >> 8 & 0xFF))
#define VALUE(look) ((int)((int32_t)(look) >> 16))

enum { END = 64 };

typedef struct {
    Look looks[1 << LOOK];
    int32_t end[18];    /* one past the last code of each length, left-aligned in 16 bits */
    int32_t offset[18]; /* from a code of each length to its symbol's place */
    uint8_t symbols[256];
} Codes;

typedef struct {
    Codes dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
    const uint8_t *at, *end;
    uint64_t bits; /* the next ones, from the top */
    int num_bits;  /* real ones among them; less than 0: more were taken than there were */
    int is_exhausted;
    int previous[MAX_COMPS_IN_SCAN];
    unsigned int until_restart;
    int next_restart;
    jmp_buf *out;
    const char *problem;
} Entropy;

static const uint8_t zigzag[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

static inline int extended(int bits, int size) {
    return bits < (1 << (size - 1)) ? bits - (1 << size) + 1 : bits;
}

/* Returns 0 where the table makes no sense. A DC symbol is the value's size, an AC symbol run and size. */
static int make_codes(Codes *codes, const JHUFF_TBL *table, int is_dc) {
    for (int i = 0; i < 1 << LOOK; i++) codes->looks[i] = SLOW;
    int code = 0, number = 0;
    for (int length = 1; length <= 16; length++) {
        codes->offset[length] = number - code;
        for (int i = 0; i < table->bits[length]; i++, code++, number++) {
            if (number >= 256 || code >= 1 << length) return 0;
            int symbol = table->huffval[number];
            int run = is_dc ? 0 : symbol >> 4, size = is_dc ? symbol : symbol & 15;
            if (size > 15) return 0;
            codes->symbols[number] = (uint8_t)symbol;
            if (length > LOOK) continue;
            Look *looks = codes->looks + (code << (LOOK - length));
            for (int rest = 0; rest < 1 << (LOOK - length); rest++) {
                int value = 0, all = length, before = run;
                Look slow = 0;
                if (size == 0) {
                    before = !is_dc && run != 15 ? END : run;
                } else if (length + size <= LOOK) {
                    all = length + size;
                    value = extended((rest >> (LOOK - length - size)) & ((1 << size) - 1), size);
                } else {
                    value = size;
                    slow = SLOW;
                }
                looks[rest] = (uint32_t)value << 16 | (uint32_t)before << 8 | slow | (uint32_t)all;
            }
        }
        codes->end[length] = code << (16 - length);
        code <<= 1;
    }
    codes->end[17] = INT32_MAX;
    return 1;
}

static void broken(Entropy *entropy, const char *problem) {
    entropy->problem = problem;
    longjmp(*entropy->out, 1);
}

static void fill_by_bytes(Entropy *entropy) {
    while (entropy->num_bits < 56 && !entropy->is_exhausted) {
        if (entropy->at >= entropy->end) {
            entropy->is_exhausted = 1;
            return;
        }
        uint8_t byte = *entropy->at;
        if (byte == 0xFF) {
            if (entropy->at + 1 >= entropy->end || entropy->at[1] != 0) {
                entropy->is_exhausted = 1; /* a marker; zeros follow, and whoever needs them is told */
                return;
            }
            entropy->at++;
        }
        entropy->at++;
        entropy->bits |= (uint64_t)byte << (56 - entropy->num_bits);
        entropy->num_bits += 8;
    }
}

/* The buffer in registers, while a block is decoded. */
typedef struct {
    uint64_t bits;
    int num_bits;
} Buffer;

/* Makes sure of 56 bits, as far as there are any. */
static inline void fill(Entropy *entropy, Buffer *buffer) {
    if (__builtin_expect(entropy->end - entropy->at >= 8 && buffer->num_bits >= 0, 1)) {
        uint64_t next;
        memcpy(&next, entropy->at, 8);
        /* Without a byte of 0xFF: its complement has no byte of zero. */
        if (__builtin_expect(!((~next - 0x0101010101010101u) & next & 0x8080808080808080u), 1)) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            next = __builtin_bswap64(next);
#endif
            buffer->bits |= next >> buffer->num_bits;
            entropy->at += (63 - buffer->num_bits) >> 3;
            buffer->num_bits |= 56;
            return;
        }
    }
    entropy->bits = buffer->bits;
    entropy->num_bits = buffer->num_bits;
    fill_by_bytes(entropy);
    buffer->bits = entropy->bits;
    buffer->num_bits = entropy->num_bits;
}

static inline int take(Buffer *buffer, int count) {
    int taken = (int)(buffer->bits >> (64 - count));
    buffer->bits <<= count;
    buffer->num_bits -= count;
    return taken;
}

static inline void drop(Buffer *buffer, int count) {
    buffer->bits <<= count;
    buffer->num_bits -= count;
}

/* A code that is longer than a look. */
static int take_long(Entropy *entropy, Buffer *buffer, const Codes *codes) {
    int next = (int)(buffer->bits >> 48), length = LOOK + 1;
    while (next >= codes->end[length]) length++;
    if (length > 16) broken(entropy, "a code that the table does not have");
    return codes->symbols[codes->offset[length] + take(buffer, length)];
}

static inline void decode_block(Entropy *entropy, const Codes *dc, const Codes *ac, int component, JCOEF *block) {
    Buffer buffer = {entropy->bits, entropy->num_bits};
    fill(entropy, &buffer);
    Look look = dc->looks[buffer.bits >> (64 - LOOK)];
    int difference = VALUE(look);
    if (!(look & SLOW)) {
        drop(&buffer, LENGTH(look));
    } else {
        int size = LENGTH(look) ? (drop(&buffer, LENGTH(look)), VALUE(look)) : take_long(entropy, &buffer, dc);
        difference = size ? extended(take(&buffer, size), size) : 0;
    }
    entropy->previous[component] = (int)((unsigned)entropy->previous[component] + (unsigned)difference);
    block[0] = (JCOEF)entropy->previous[component];
    int at = 1;
    while (at < 64) {
        fill(entropy, &buffer);
        /* 56 bits are enough for two looks and a code and value of any kind. */
        for (int i = 0;; i++) {
            look = ac->looks[buffer.bits >> (64 - LOOK)];
            if (look & SLOW) break;
            drop(&buffer, LENGTH(look));
            at += RUN(look);
            if (at >= 63) {
                if (at == 63) block[63] = (JCOEF)VALUE(look);
                goto end;
            }
            block[zigzag[at++]] = (JCOEF)VALUE(look);
            if (i == 2) break;
        }
        if (!(look & SLOW)) continue;
        int run = RUN(look), size = VALUE(look);
        if (LENGTH(look)) {
            drop(&buffer, LENGTH(look));
        } else {
            int symbol = take_long(entropy, &buffer, ac);
            run = symbol >> 4;
            size = symbol & 15;
            if (size == 0 && run != 15) break;
        }
        at += run;
        int value = size ? extended(take(&buffer, size), size) : 0;
        if (at > 63) break;
        block[zigzag[at++]] = (JCOEF)value;
    }
end:
    entropy->bits = buffer.bits;
    entropy->num_bits = buffer.num_bits;
    if (buffer.num_bits < 0) broken(entropy, "the data ends too early");
}

static void restart(Entropy *entropy, unsigned int interval) {
    if (entropy->num_bits >= 8) broken(entropy, "data where a restart marker should be");
    while (entropy->end - entropy->at >= 2 && entropy->at[0] == 0xFF && entropy->at[1] == 0xFF) entropy->at++;
    if (entropy->end - entropy->at < 2 || entropy->at[0] != 0xFF || entropy->at[1] != 0xD0 + entropy->next_restart)
        broken(entropy, "a restart marker is missing");
    entropy->at += 2;
    entropy->bits = 0;
    entropy->num_bits = entropy->is_exhausted = 0;
    memset(entropy->previous, 0, sizeof entropy->previous);
    entropy->until_restart = interval;
    entropy->next_restart = (entropy->next_restart + 1) & 7;
}

static boolean decode_mcu_fast(j_decompress_ptr info, JBLOCKROW *blocks) {
    Entropy *entropy = info->client_data;
    JCOEF unwanted[DCTSIZE2]; /* of what is skipped; libjpeg passes no blocks then */
    if (info->restart_interval) {
        if (entropy->until_restart == 0) restart(entropy, info->restart_interval);
        entropy->until_restart--;
    }
    for (int i = 0; i < info->blocks_in_MCU; i++) {
        int component = info->MCU_membership[i];
        const jpeg_component_info *about = info->cur_comp_info[component];
        decode_block(entropy, &entropy->dc[about->dc_tbl_no], &entropy->ac[about->ac_tbl_no], component,
                     blocks ? blocks[i][0] : unwanted);
    }
    return TRUE;
}

/* After jpeg_start_decompress: takes the place of libjpeg's decoder where it can. `out` is jumped to where the data is
 * broken, after `problem` has been set. */
static void use_fast_entropy(j_decompress_ptr info, Entropy *entropy, jmp_buf *out) {
    if (info->progressive_mode || info->arith_code || info->data_precision != 8 || jpeg_has_multiple_scans(info)) return;
    for (int i = 0; i < info->comps_in_scan; i++) {
        int dc = info->cur_comp_info[i]->dc_tbl_no, ac = info->cur_comp_info[i]->ac_tbl_no;
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS) return;
        if (!info->dc_huff_tbl_ptrs[dc] || !info->ac_huff_tbl_ptrs[ac]) return;
        if (!make_codes(&entropy->dc[dc], info->dc_huff_tbl_ptrs[dc], 1)) return;
        if (!make_codes(&entropy->ac[ac], info->ac_huff_tbl_ptrs[ac], 0)) return;
    }
    entropy->at = info->src->next_input_byte;
    entropy->end = entropy->at + info->src->bytes_in_buffer;
    entropy->until_restart = info->restart_interval;
    entropy->out = out;
    info->client_data = entropy;
    info->entropy->decode_mcu = decode_mcu_fast;
}

#endif

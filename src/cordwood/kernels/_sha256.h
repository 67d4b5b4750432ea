/* SHA-256 (FIPS 180-4), for many short messages.
 *
 * There are two functions that compress blocks: one in plain C, and one with the SHA instructions of x86-64,
 * which is chosen when the module is loaded on a processor that has them.
 */

#ifndef CORDWOOD_SHA256_H
#define CORDWOOD_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SHA256_X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#define SHA256_BLOCK 64
#define SHA256_DIGEST 32

typedef struct {
    uint32_t state[8];
    uint64_t size;               /* bytes of the message so far */
    uint8_t block[SHA256_BLOCK]; /* the last size % 64 of them, which wait for the rest of their block */
} sha256_stream;

typedef void (*sha256_compressor)(uint32_t *state, const uint8_t *data, size_t blocks);

/* Section 5.3.3: the first 32 bits of the fractional parts of the square roots of the first 8 primes. */
static const uint32_t sha256_initial[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

/* Section 4.2.2: the same of the cube roots of the first 64 primes. */
static const uint32_t sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* --- big-endian numbers --- */

static inline uint32_t sha256_get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void sha256_put32(uint8_t *p, uint32_t value) {
    p[0] = (uint8_t)(value >> 24);
    p[1] = (uint8_t)(value >> 16);
    p[2] = (uint8_t)(value >> 8);
    p[3] = (uint8_t)value;
}

static inline void sha256_put64(uint8_t *p, uint64_t value) {
    sha256_put32(p, (uint32_t)(value >> 32));
    sha256_put32(p + 4, (uint32_t)value);
}

/* --- compressing, in plain C --- */

static inline uint32_t sha256_rotated(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void sha256_compress_portable(uint32_t *state, const uint8_t *data, size_t blocks) {
    uint32_t w[64];
    for (; blocks > 0; blocks--, data += SHA256_BLOCK) {
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int t = 0; t < 16; t++)
            w[t] = sha256_get32(data + 4 * t);
        for (int t = 16; t < 64; t++) {
            uint32_t s0 = sha256_rotated(w[t - 15], 7) ^ sha256_rotated(w[t - 15], 18) ^ w[t - 15] >> 3;
            uint32_t s1 = sha256_rotated(w[t - 2], 17) ^ sha256_rotated(w[t - 2], 19) ^ w[t - 2] >> 10;
            w[t] = s1 + w[t - 7] + s0 + w[t - 16];
        }
        for (int t = 0; t < 64; t++) {
            uint32_t sum1 = sha256_rotated(e, 6) ^ sha256_rotated(e, 11) ^ sha256_rotated(e, 25);
            uint32_t sum0 = sha256_rotated(a, 2) ^ sha256_rotated(a, 13) ^ sha256_rotated(a, 22);
            uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + sha256_constants[t] + w[t];
            uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
        state[4] += e;
        state[5] += f;
        state[6] += g;
        state[7] += h;
    }
}

/* --- compressing, with the SHA instructions of x86-64 --- */

#ifdef SHA256_X86

/* Four rounds. The instruction does two, on the words F, E, B, A and H, G, D, C, lowest first; after two
 * rounds the second of these is what the first was before, so the two take turns. */
#define SHA256_ROUNDS(w, t)                                                                              \
    added = _mm_add_epi32(w, _mm_loadu_si128((const __m128i *)(sha256_constants + (t))));                \
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);                                                     \
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));

/* The same, and the four words of the schedule that follow the sixteen in w0 to w3, in place of w0. */
#define SHA256_ROUNDS_AND_WORDS(w0, w1, w2, w3, t)                                                       \
    SHA256_ROUNDS(w0, t)                                                                                 \
    w0 = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));                        \
    w0 = _mm_sha256msg2_epu32(w0, w3);

__attribute__((target("sha,sse4.1,ssse3"))) static void sha256_compress_x86(
    uint32_t *state, const uint8_t *data, size_t blocks) {
    /* Bytes of a word are stored highest first, words of a block lowest first. */
    const __m128i order = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    /* Moved as floats, because only for those one instruction takes words of two registers. */
    __m128 abcd = _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)state));
    __m128 efgh = _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)(state + 4)));
    __m128i abef = _mm_castps_si128(_mm_shuffle_ps(efgh, abcd, _MM_SHUFFLE(0, 1, 0, 1)));
    __m128i cdgh = _mm_castps_si128(_mm_shuffle_ps(efgh, abcd, _MM_SHUFFLE(2, 3, 2, 3)));
    for (; blocks > 0; blocks--, data += SHA256_BLOCK) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w0 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data), order);
        __m128i w1 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16)), order);
        __m128i w2 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 32)), order);
        __m128i w3 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 48)), order);
        __m128i added;
        SHA256_ROUNDS_AND_WORDS(w0, w1, w2, w3, 0)
        SHA256_ROUNDS_AND_WORDS(w1, w2, w3, w0, 4)
        SHA256_ROUNDS_AND_WORDS(w2, w3, w0, w1, 8)
        SHA256_ROUNDS_AND_WORDS(w3, w0, w1, w2, 12)
        SHA256_ROUNDS_AND_WORDS(w0, w1, w2, w3, 16)
        SHA256_ROUNDS_AND_WORDS(w1, w2, w3, w0, 20)
        SHA256_ROUNDS_AND_WORDS(w2, w3, w0, w1, 24)
        SHA256_ROUNDS_AND_WORDS(w3, w0, w1, w2, 28)
        SHA256_ROUNDS_AND_WORDS(w0, w1, w2, w3, 32)
        SHA256_ROUNDS_AND_WORDS(w1, w2, w3, w0, 36)
        SHA256_ROUNDS_AND_WORDS(w2, w3, w0, w1, 40)
        SHA256_ROUNDS_AND_WORDS(w3, w0, w1, w2, 44)
        SHA256_ROUNDS(w0, 48)
        SHA256_ROUNDS(w1, 52)
        SHA256_ROUNDS(w2, 56)
        SHA256_ROUNDS(w3, 60)
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    abcd = _mm_shuffle_ps(_mm_castsi128_ps(abef), _mm_castsi128_ps(cdgh), _MM_SHUFFLE(2, 3, 2, 3));
    efgh = _mm_shuffle_ps(_mm_castsi128_ps(abef), _mm_castsi128_ps(cdgh), _MM_SHUFFLE(0, 1, 0, 1));
    _mm_storeu_si128((__m128i *)state, _mm_castps_si128(abcd));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_castps_si128(efgh));
}

#undef SHA256_ROUNDS
#undef SHA256_ROUNDS_AND_WORDS

static int sha256_processor_has_it(void) {
    unsigned int a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1))
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

#endif

/* --- choosing --- */

static sha256_compressor sha256_compress = sha256_compress_portable;

/* Choose the function that compresses; return whether it uses instructions of the processor for it. */
static int sha256_choose(int portable) {
    sha256_compress = sha256_compress_portable;
#ifdef SHA256_X86
    if (!portable && sha256_processor_has_it())
        sha256_compress = sha256_compress_x86;
#endif
    return sha256_compress != sha256_compress_portable;
}

/* --- messages of any size --- */

static inline void sha256_init(sha256_stream *s) {
    memcpy(s->state, sha256_initial, sizeof sha256_initial);
    s->size = 0;
}

static inline void sha256_update(sha256_stream *s, const uint8_t *data, size_t size) {
    size_t used = s->size % SHA256_BLOCK;
    s->size += size;
    if (size < SHA256_BLOCK - used) {
        if (size > 0)
            memcpy(s->block + used, data, size);
        return;
    }
    if (used > 0) {
        memcpy(s->block + used, data, SHA256_BLOCK - used);
        sha256_compress(s->state, s->block, 1);
        data += SHA256_BLOCK - used;
        size -= SHA256_BLOCK - used;
    }
    /* Whole blocks are read where they are. */
    if (size >= SHA256_BLOCK) {
        sha256_compress(s->state, data, size / SHA256_BLOCK);
        data += size / SHA256_BLOCK * SHA256_BLOCK;
        size %= SHA256_BLOCK;
    }
    if (size > 0)
        memcpy(s->block, data, size);
}

static inline void sha256_digest(const uint32_t *state, uint8_t *digest) {
    for (int i = 0; i < 8; i++)
        sha256_put32(digest + 4 * i, state[i]);
}

static inline void sha256_final(sha256_stream *s, uint8_t *digest) {
    size_t used = s->size % SHA256_BLOCK;
    s->block[used++] = 0x80;
    if (used > SHA256_BLOCK - 8) {
        memset(s->block + used, 0, SHA256_BLOCK - used);
        sha256_compress(s->state, s->block, 1);
        used = 0;
    }
    memset(s->block + used, 0, SHA256_BLOCK - 8 - used);
    sha256_put64(s->block + SHA256_BLOCK - 8, s->size * 8);
    sha256_compress(s->state, s->block, 1);
    sha256_digest(s->state, digest);
}

/* --- many messages of one size of 56 to 119 bytes, which is two blocks with the padding --- */

/* Write the padding of messages of *size* bytes into the 128 bytes that hold each of them in turn. */
static inline void sha256_pad_two(uint8_t *blocks, size_t size) {
    memset(blocks + size, 0, 2 * SHA256_BLOCK - size);
    blocks[size] = 0x80;
    sha256_put64(blocks + 2 * SHA256_BLOCK - 8, (uint64_t)size * 8);
}

static inline void sha256_of_two(const uint8_t *blocks, uint8_t *digest) {
    uint32_t state[8];
    memcpy(state, sha256_initial, sizeof sha256_initial);
    sha256_compress(state, blocks, 2);
    sha256_digest(state, digest);
}

#endif

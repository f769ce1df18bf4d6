/* Elements of every type as floats or doubles, and the way through an array of any layout.

   Narrow and strange types are widened into a buffer of one piece.  What is inline here is compiled into every
   variant for an instruction set, and for it. */
#ifndef NEURONSCOPE_ELEMENTS_H
#define NEURONSCOPE_ELEMENTS_H

#include <stdint.h>
#include <string.h>

#define PIECE 1024 /* elements: float sums of so many stay within 1e-5, also for constant data */
#define MAX_DIMS 64

#define INLINE static inline __attribute__((always_inline))

enum { F32, F64, F16, BF16, TABLE8, U8, I8, U16, I16, U32, I32, U64, I64, C64, C128 };

INLINE float from_half(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t bits = magnitude + (112u << 23);                       /* the exponent's other bias */
    if (magnitude >= (0x7c00u << 13)) bits = magnitude | 0x7f800000u; /* Inf and NaN */
    float tiny = (float)(int32_t)(h & 0x3ffu) * 0x1p-24f;
    uint32_t small;
    memcpy(&small, &tiny, 4);
    bits = ((h & 0x7c00u) == 0 ? small : bits) | sign;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float from_bfloat(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE double modulus(double re, double im) {
    uint64_t a, b;
    memcpy(&a, &re, 8);
    memcpy(&b, &im, 8);
    a &= 0x7fffffffffffffffu;
    b &= 0x7fffffffffffffffu;
    const uint64_t infinite = 0x7ff0000000000000u;
    double value;
    if (a >= infinite || b >= infinite) { /* C's rule: an infinite part wins over a NaN */
        uint64_t bits = (a == infinite || b == infinite) ? infinite : infinite | 1u;
        memcpy(&value, &bits, 8);
        return value;
    }
    double x = re < 0 ? -re : re, y = im < 0 ? -im : im, large = x > y ? x : y, small = x > y ? y : x;
    if (large == 0) return 0;
    double ratio = small / large;
    return large * __builtin_sqrt(1 + ratio * ratio);
}

/* Widens `n` elements of a kind, `stride` elements apart, into floats or doubles. */
#define WIDEN(TO, FROM, EXPRESSION)                                                                             \
    {                                                                                                           \
        const FROM *p = data;                                                                                   \
        TO *q = buffer;                                                                                         \
        if (stride == 1)                                                                                        \
            for (int i = 0; i < n; i++) { FROM x = p[i]; q[i] = (TO)(EXPRESSION); }                             \
        else                                                                                                    \
            for (int i = 0; i < n; i++) { FROM x = p[i * stride]; q[i] = (TO)(EXPRESSION); }                    \
        break;                                                                                                  \
    }

typedef struct { float re, im; } Complex64;
typedef struct { double re, im; } Complex128;

INLINE void widen(int kind, const float *table, const void *data, int n, int64_t stride, void *buffer) {
    switch (kind) {
    case F32: WIDEN(float, float, x)
    case F64: WIDEN(double, double, x)
    case F16: WIDEN(float, uint16_t, from_half(x))
    case BF16: WIDEN(float, uint16_t, from_bfloat(x))
    case TABLE8: WIDEN(float, uint8_t, table[x])
    case U8: WIDEN(float, uint8_t, x)
    case I8: WIDEN(float, int8_t, x)
    case U16: WIDEN(float, uint16_t, x)
    case I16: WIDEN(float, int16_t, x)
    case U32: WIDEN(double, uint32_t, x)
    case I32: WIDEN(double, int32_t, x)
    case U64: WIDEN(double, uint64_t, x)
    case I64: WIDEN(double, int64_t, x)
    case C64: WIDEN(double, Complex64, modulus(x.re, x.im))
    case C128: WIDEN(double, Complex128, modulus(x.re, x.im))
    default: break;
    }
}

static const int SIZES[] = {4, 8, 2, 2, 1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16};
#define WIDE(kind) ((kind) == F64 || (kind) >= U32)

/* May such an array be read?  `table` is needed for kind TABLE8. */
INLINE int is_readable(int64_t kind, const float *table, int64_t dims_count) {
    return kind >= F32 && kind <= C128 && (kind != TABLE8 || table) && dims_count >= 1 && dims_count <= MAX_DIMS;
}

/* Go on to the next row, in C order: its indices in `at`, its first element at `offset`.  0: there is none. */
INLINE int next_row(const int64_t *dims, const int64_t *strides, int inner, int64_t *at, int64_t *offset) {
    for (int d = inner - 1; d >= 0; d--) {
        *offset += strides[d];
        if (++at[d] < dims[d]) return 1;
        *offset -= strides[d] * dims[d];
        at[d] = 0;
    }
    return 0;
}

#endif

/* On request: how many elements there are by magnitude, and a sketch of them all; `details.py` says what for.

   Compiled as `kernel.c` is: what is not finite is told by its bits. */
#include "elements.h"

#define BUCKETS 64
#define LOWEST 40 /* bucket b holds 2^(b-40) <= |x| < 2^(b-39); the first and the last all beyond */

/* Vigna's splitmix64: a place and a sign for each position. */
INLINE uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void note(double x, uint64_t position, int64_t *histogram, double *sketch) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int exponent = (int)(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff || !(bits << 1)) return; /* not finite, or zero: counted elsewhere */
    int bucket = exponent - 1023 + LOWEST;
    histogram[bucket < 0 ? 0 : bucket >= BUCKETS ? BUCKETS - 1 : bucket]++;
    uint64_t hash = mixed(position);
    sketch[hash & 63] += hash >> 63 ? -x : x;
}

/* Counts by magnitude, and a sketch: 64 sums of the elements in order (C order of `dims`), each with the place and
   the sign that its position hashes to.  Arguments as above; both outputs have 64 numbers. */
int ns_details(const char *data, int64_t kind, const float *table, int64_t dims_count, const int64_t *dims,
               int64_t *histogram, double *sketch) {
    if (!is_readable(kind, table, dims_count)) return -1;
    const int64_t *strides = dims + dims_count;
    const int inner = (int)dims_count - 1, size = SIZES[kind], wide = WIDE(kind);
    int64_t at[MAX_DIMS] = {0}, offset = 0;
    uint64_t position = 0;
    double buffer[PIECE];
    memset(histogram, 0, BUCKETS * sizeof *histogram);
    memset(sketch, 0, 64 * sizeof *sketch);
    for (int d = 0; d <= inner; d++)
        if (dims[d] <= 0) return 0;
    for (;;) {
        for (int64_t done = 0; done < dims[inner];) {
            int n = dims[inner] - done < PIECE ? (int)(dims[inner] - done) : PIECE;
            widen((int)kind, table, data + (offset + done * strides[inner]) * size, n, strides[inner], buffer);
            for (int i = 0; i < n; i++) {
                double x;
                if (wide) x = buffer[i];
                else { float narrow; memcpy(&narrow, (char *)buffer + 4 * i, 4); x = narrow; }
                note(x, position++, histogram, sketch);
            }
            done += n;
        }
        if (!next_row(dims, strides, inner, at, &offset)) return 0;
    }
}

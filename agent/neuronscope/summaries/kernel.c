/* Statistics of an array in one pass over its memory.

   The array is read in pieces that stay in the first-level cache.  A healthy piece takes the fast route: one loop
   of sums, sums of squares, extremes and zeros, which compilers turn into vector instructions.  A piece where that
   could be wrong (a non-finite value, squares that overflow or vanish, a mean that dwarfs the deviation) is read
   again in double precision, centred.  Narrow and strange types are first widened into a buffer of one piece
   (`elements.h`), and so are elements with gaps between them: nothing else is copied.

   Compiled with -ffinite-math-only, or minima and maxima would not be vectorised.  So no decision about NaN or
   infinity may be made on a floating-point value: only on bits that have been through memory. */

#include "elements.h"

#define NS_ABI 1
#define FAR (8 << 20) /* bytes that no cache is sure to hold */

/* What the caller gets.  Statistics are over the finite elements. */
typedef struct {
    double count, finite, mean, squares, energy, low, high, zeros, nans, infs;
} Moments;

/* Sums over healthy pieces, and the merged moments of the others. */
typedef struct {
    double n, sum, energy;
    Moments rest;
    double low, high;
    int64_t zeros;
} Total;

#define INFINITE __builtin_inf()

/* --- one piece, with care ------------------------------------------------------------------------------- */

static void merge(Moments *into, const Moments *other) {
    double n = into->finite + other->finite;
    if (other->finite > 0) { /* Chan, Golub and LeVeque's update */
        double delta = other->mean - into->mean, share = other->finite / n;
        into->mean += delta * share;
        into->squares += other->squares + delta * delta * into->finite * share;
    }
    into->finite = n;
    into->energy += other->energy;
    into->nans += other->nans;
    into->infs += other->infs;
}

/* `values` is changed: its finite elements move to the front. */
static void take_carefully(double *values, int n, Total *total) {
    Moments part = {0};
    int kept = 0;
    for (int i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, values + i, 8);
        bits &= 0x7fffffffffffffffu;
        if (bits > 0x7ff0000000000000u) part.nans++;
        else if (bits == 0x7ff0000000000000u) part.infs++;
        else values[kept++] = values[i];
    }
    double sum = 0, energy = 0, squares = 0;
    for (int i = 0; i < kept; i++) {
        double x = values[i];
        sum += x;
        energy += x * x;
        total->low = x < total->low ? x : total->low;
        total->high = x > total->high ? x : total->high;
        total->zeros += x == 0;
    }
    if (kept) {
        part.mean = sum / kept;
        for (int i = 0; i < kept; i++) squares += (values[i] - part.mean) * (values[i] - part.mean);
    }
    part.finite = kept;
    part.squares = squares;
    part.energy = energy;
    merge(&total->rest, &part);
}

/* --- one piece, fast ------------------------------------------------------------------------------------- */

/* Bits that have been through memory: what the compiler assumes of floats does not follow them there. */
INLINE int overflowed32(float x) {
    volatile float stored = x;
    float loaded = stored;
    uint32_t bits;
    memcpy(&bits, &loaded, 4);
    return (bits & 0x7f800000u) == 0x7f800000u;
}

INLINE int overflowed64(double x) {
    volatile double stored = x;
    double loaded = stored;
    uint64_t bits;
    memcpy(&bits, &loaded, 8);
    return (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}

/* Σ(x − mean)² / Σx² below which Σx² − mean·Σx has lost too many digits; |x| whose squares are safe. */
#define DEFINE_TAKE(NAME, TYPE, OVERFLOWED, LEAST_SHARE, SMALLEST, LARGEST)                                     \
    INLINE void NAME(const TYPE *p, int n, Total *total) {                                                      \
        TYPE sum = 0, sum2 = 0, energy = 0, energy2 = 0, low = p[0], low2 = low, high = low, high2 = low;       \
        int zeros = 0, zeros2 = 0, half = n / 2;                                                                \
        const TYPE *p2 = p + half; /* two halves side by side: one addition need not wait for another */        \
        _Pragma("omp simd reduction(+:sum,sum2,energy,energy2,zeros,zeros2) reduction(min:low,low2) reduction(max:high,high2)")\
        for (int i = 0; i < half; i++) {                                                                        \
            TYPE x = p[i], y = p2[i];                                                                           \
            sum += x, sum2 += y;                                                                                \
            energy += x * x, energy2 += y * y;                                                                  \
            low = x < low ? x : low, low2 = y < low2 ? y : low2;                                                \
            high = x > high ? x : high, high2 = y > high2 ? y : high2;                                          \
            zeros += x == 0, zeros2 += y == 0;                                                                  \
        }                                                                                                       \
        if (n % 2) {                                                                                            \
            TYPE x = p[n - 1];                                                                                  \
            sum += x, energy += x * x, zeros += x == 0;                                                         \
            low = x < low ? x : low;                                                                            \
            high = x > high ? x : high;                                                                         \
        }                                                                                                       \
        sum += sum2, energy += energy2, zeros += zeros2;                                                        \
        low = low2 < low ? low2 : low;                                                                          \
        high = high2 > high ? high2 : high;                                                                     \
        if (!OVERFLOWED(sum) && !OVERFLOWED(energy)) {                                                          \
            double s = sum, e = energy, peak = high > -low ? high : -low;                                       \
            int fit = peak == 0 || (peak > SMALLEST && peak < LARGEST);                                         \
            if (fit && (e - s * s / n >= LEAST_SHARE * e)) {                                                    \
                total->n += n;                                                                                  \
                total->sum += s;                                                                                \
                total->energy += e;                                                                             \
                total->low = low < total->low ? low : total->low;                                               \
                total->high = high > total->high ? high : total->high;                                          \
                total->zeros += zeros;                                                                          \
                return;                                                                                         \
            }                                                                                                   \
        }                                                                                                       \
        double wide[PIECE];                                                                                     \
        for (int i = 0; i < n; i++) wide[i] = p[i];                                                             \
        take_carefully(wide, n, total);                                                                         \
    }

DEFINE_TAKE(take32, float, overflowed32, 1e-2, 1e-15, 1e15)
DEFINE_TAKE(take64, double, overflowed64, 1e-6, 1e-140, 1e140)

/* --- the whole array ------------------------------------------------------------------------------------- */

/* `dims`: the sizes of the dimensions, then their strides in elements, the innermost last. */
INLINE void read_array(int kind, const float *table, const char *data, int dims_count, const int64_t *dims,
                       Total *total) {
    double buffer[PIECE]; /* floats or doubles */
    const int64_t *strides = dims + dims_count;
    const int inner = dims_count - 1, size = SIZES[kind], wide = WIDE(kind);
    const int as_is = (kind == F32 || kind == F64) && strides[inner] == 1;
    /* Beyond the caches memory is asked for in time: reading two halves side by side confuses the processor's
       own guesses, which costs a factor of three. */
    const int far = dims[inner] > FAR / size;
    int64_t at[MAX_DIMS] = {0}, offset = 0, row_left = dims[inner], row_at = 0;
    int filled = 0, more = 1;
    while (more) {
        const char *from = data + (offset + row_at * strides[inner]) * size;
        const void *piece = buffer;
        int n = PIECE - filled;
        if (row_left < n) n = (int)row_left;
        if (as_is && !filled && (n == PIECE || inner == 0)) {
            piece = from;
            if (far)
                for (int i = 0; i < PIECE * size; i += 64) __builtin_prefetch(from + PIECE * size + i);
        }
        else widen(kind, table, from, n, strides[inner], (char *)buffer + filled * (wide ? 8 : 4));
        filled += n;
        row_at += n;
        row_left -= n;
        if (!row_left) { /* the next row, if there is one */
            more = next_row(dims, strides, inner, at, &offset);
            row_at = 0;
            row_left = dims[inner];
        }
        if (filled == PIECE || !more) {
            if (wide) take64(piece, filled, total);
            else take32(piece, filled, total);
            filled = 0;
        }
    }
}

/* A variant for an instruction set: the same code, compiled for it. */
#define VARIANT(NAME, ATTRIBUTES)                                                                               \
    ATTRIBUTES static void NAME(int kind, const float *table, const char *data, int dims_count,                 \
                                const int64_t *dims, Total *total) {                                            \
        read_array(kind, table, data, dims_count, dims, total);                                                 \
    }

VARIANT(baseline, )
static void (*variant)(int, const float *, const char *, int, const int64_t *, Total *) = baseline;
static const char *variant_name = "baseline";

#if defined(__x86_64__) && defined(__GNUC__)
VARIANT(avx2, __attribute__((target("avx2,fma"))))
VARIANT(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"))))

__attribute__((constructor)) static void choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        variant = avx512;
        variant_name = "avx512";
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        variant = avx2;
        variant_name = "avx2";
    }
}
#endif

int ns_abi(void) { return NS_ABI; }
const char *ns_digest(void) { return NS_DIGEST; }
const char *ns_variant(void) { return variant_name; }

/* Choose a variant by name, for tests; 0 where this machine or compiler does not have it. */
int ns_use(const char *name) {
#if defined(__x86_64__) && defined(__GNUC__)
    choose();
    if (!strcmp(name, "avx2") && strcmp(variant_name, "baseline")) variant = avx2, variant_name = "avx2";
#endif
    if (!strcmp(name, "baseline")) variant = baseline, variant_name = "baseline";
    return !strcmp(name, variant_name);
}

/* Moments of an array into `out`.

   count: elements of a contiguous array (dims = NULL), or the number of dimensions of `dims`: their sizes, then
   their strides in elements, the innermost last.
   table: the 256 values of an 8-bit type, for kind TABLE8.  Any thread may call; nothing is kept. */
int ns_moments(const char *data, int64_t kind, const float *table, int64_t count, const int64_t *dims, Moments *out) {
    const int64_t contiguous[] = {count, 1};
    const int dims_count = dims ? (int)count : 1;
    if (!is_readable(kind, table, dims_count))
        return -1;
    if (!dims) dims = contiguous;
    int64_t elements = 1;
    for (int d = 0; d < dims_count; d++) elements *= dims[d];
    Total total = {.low = INFINITE, .high = -INFINITE};
    if (elements > 0) variant((int)kind, table, data, dims_count, dims, &total);
    Moments healthy = {.finite = total.n, .energy = total.energy};
    if (total.n > 0) {
        healthy.mean = total.sum / total.n;
        healthy.squares = total.energy - total.sum * healthy.mean;
    }
    *out = total.rest;
    merge(out, &healthy);
    out->count = (double)elements;
    out->low = total.low;
    out->high = total.high;
    out->zeros = (double)total.zeros;
    return 0;
}

/* Local reparameterisation at the nonzeros of a weight: forward and backward of
 *   y = sum_k mu_k x + sqrt(sum_k sigma_k^2 x^2) eps
 * for Linear and Conv2d, on activations in blocks of the batch, and what networks do between such layers; and of
 * dense layers the noise and the KL. Plain C behind a C interface: it needs neither torch's nor Python's headers, the thread pool is the one torch
 * brought along, and all memory is the caller's. Compiled once per instruction set and chosen at run time, so that one library
 * runs on every machine.
 */
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCH 1
#include <immintrin.h>
#endif

enum { MEAN, NOISE, GIVEN };
enum { MAX_STRIDE = 8, LANES = 16 };
enum { CHUNK = 1024 }; /* elements whose intermediate values stay in the first cache */
#define LOWEST -8.5e37f /* a mean that is below all others */
/* nonzeros, and bytes, that the caches hold in the backward pass */
enum { SUMS = 768, STRIP = 384 << 10, NEAR = 384 << 10 };

/* Keeps a vector in its register: a compiler would rather load it again for the second use, and loads are what is scarce. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v)
#endif

#include "arguments.h"
#include "geometry.h"
#include "plan.h"
#include "layout.h"

/* Where a gradient comes from. g: of what came out in the end. out: that itself, where its sign is the rectifier's, else
 * NULL. y: the output of the operation. slope: d y / d v. line: of a normalisation in between (or NULL), six numbers a
 * channel: dx = l0 dy - l1 - l2 (x - l3), where the rectifier (if rectified) let pass what has y l4 + l5 > 0. */
typedef struct {
  const float *g, *out, *y, *slope, *line;
  int rectified;
} upstream;

/* A KL that looks at each weight by itself. form: the prior, or the curve against the log-uniform one. multiplicative: scales
 * are log alpha, else std = log(1 + exp(scale)). centre, inverse: of a normal prior, 1 / its std. rows, length: of the weights. */
enum { NORMAL, MOLCHANOV, KINGMA, CUI };
typedef struct {
  int form, multiplicative;
  float centre, inverse;
  int64_t rows, length;
} law;
enum { STRETCH = 1 << 14 };

static inline int64_t stretches(int64_t length) { return (length + STRETCH - 1) / STRETCH; }

static inline uint64_t mixed(uint64_t z) { /* splitmix64 */
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/* Rows r of `columns` taps each, from tap `start` on, as runs of taps that reach the same members; neighbours are joined. */
static inline int joined(run *runs, const span *reach, int columns, span r, int start) {
  int count = 0;
  for (int a = r.from; a < r.to; a++)
    for (int b = 0; b < columns; b++) {
      const int tap = start + a * columns + b;
      if (reach[b].from >= reach[b].to) continue;
      run *last = runs + count - 1;
      if (count && last->to == tap && last->q0 == reach[b].from && last->q1 == reach[b].to) last->to++;
      else runs[count++] = (run){tap, tap + 1, reach[b].from, reach[b].to};
    }
  return count;
}

/* Channels in bands of at most `limit` nonzeros: what stays in cache while positions go by. edge: of channels + 2 numbers. */
static int cut(const int32_t *rows, int channels, int taps, int64_t limit, int *edge) {
  int count = 0;
  edge[count++] = 0;
  for (int c = 1; c < channels; c++)
    if (rows[((int64_t)c + 1) * taps] - rows[(int64_t)edge[count - 1] * taps] > limit) edge[count++] = c;
  edge[count] = channels;
  return count;
}

/* mu and sigma^2 side by side in the order of a pass. */
static void pack(const plan *p, const float *mu, const float *sigma, float *w) {
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < p->count; k++) {
    const int32_t at = p->slot[k];
    w[2 * k] = mu[at];
    w[2 * k + 1] = sigma ? sigma[at] * sigma[at] : 0.0f;
  }
}

#ifdef DISPATCH
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")
#define NAME(x) x##_avx512
#define WIDTH 16
#define GUESS(v) (vf)_mm512_rsqrt14_ps((__m512)(v))
#include "all.h"
#undef GUESS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) x##_avx2
#define WIDTH 8
#include "all.h"
#pragma GCC pop_options
#endif
#define NAME(x) x##_plain
#define WIDTH 4
#include "all.h"

/* 0: any machine, 1: AVX2 and FMA, 2: AVX-512 */
static int best(void) {
#ifdef DISPATCH
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

/* Counts the changes of this interface: a library that was built before one is not called. */
int leanbayes_interface(void) { return 7; }

static int level = -1;

int leanbayes_level(int wanted) { /* the level in use; a wanted one of 0 or more is taken if the machine has it */
  int now = __atomic_load_n(&level, __ATOMIC_RELAXED);
  if (wanted >= 0 || now < 0) {
    now = wanted >= 0 && wanted < best() ? wanted : best();
    __atomic_store_n(&level, now, __ATOMIC_RELAXED);
  }
  return now;
}

#ifdef DISPATCH
#define CALL(f, ...) \
  __extension__({ \
    const int now = leanbayes_level(-1); \
    now == 2 ? f##_avx512(__VA_ARGS__) : now == 1 ? f##_avx2(__VA_ARGS__) : f##_plain(__VA_ARGS__); \
  })
#else
#define CALL(f, ...) f##_plain(__VA_ARGS__)
#endif
#include "interface.h"

/* What a caller hands over, and how it is read: every function of the interface is
 *   int64_t f(const argument *list, int64_t count)
 * and returns 0 when it is done, a positive number of floats when it needs that much working memory (the last argument; it
 * has computed nothing and is to be called again with as much), or a negative number when it refused an argument: minus
 * (256 * reason + position), the first position being 1. It writes nothing before all arguments have been checked, and it
 * allocates nothing, so that there is no failure half way through.
 */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 16 }; /* floats between pieces of working memory that nobody may touch */
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
enum { GAP = 0 };
#endif

enum { NOTHING, FLOAT32, INT32, INT8, INT64, INTEGER, REAL };
enum { FEWER = 1, KIND, COUNT, RANGE, SHAPE, LARGE, PLACE, TWICE, FOREIGN };
#define MOST ((int64_t)1 << 46) /* elements of anything: sums of a few such numbers do not overflow */

/* count: elements of a tensor or list, which lies at value.at. */
typedef struct {
  int64_t kind, count;
  union { void *at; int64_t integer; double real; } value;
} argument;

/* error: the first one, as it is returned. room, used: of the working memory, in floats. */
typedef struct {
  const argument *list;
  int64_t count, at, error;
  float *work;
  int64_t room, used;
} call;

/* a * b of numbers that are not negative, or MOST + 1 where that is less. */
static int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) || product > MOST ? MOST + 1 : product;
}

static call opened(const argument *list, int64_t count) {
  call c = {list, count, 0, 0, NULL, 0, 0};
  return c;
}

static void refuse(call *c, int reason) {
  if (!c->error) c->error = -(256 * (int64_t)reason + c->at);
}

static const argument *next(call *c, int64_t kind) {
  static const argument none = {NOTHING, 0, {NULL}};
  c->at++;
  if (c->at >= c->count) { refuse(c, FEWER); return &none; } /* the last one is the working memory */
  const argument *a = c->list + c->at - 1;
  if (a->kind != kind) { refuse(c, KIND); return &none; }
  return a;
}

/* A tensor or list of so many elements; never NULL without an error. */
static void *elements(call *c, int64_t kind, int64_t count) {
  static double empty[8];
  const argument *a = next(c, kind);
  if (a->count != count) refuse(c, COUNT);
  if (a->count && !a->value.at) refuse(c, KIND);
  return a->value.at ? a->value.at : empty;
}

static int absent(const call *c) { return c->at + 1 < c->count && c->list[c->at].kind == NOTHING; }

static float *floats(call *c, int64_t count) { return elements(c, FLOAT32, count); }

static float *floats_or_null(call *c, int64_t count) {
  if (absent(c)) { c->at++; return NULL; }
  return floats(c, count);
}

static int64_t integer(call *c, int64_t low, int64_t high) {
  const int64_t value = next(c, INTEGER)->value.integer;
  if (value < low || value > high) refuse(c, RANGE);
  return value;
}

static double real(call *c) { return next(c, REAL)->value.real; }

/* Elements of the next argument, before it is read. */
static int64_t next_count(const call *c) { return c->at + 1 < c->count ? c->list[c->at].count : 0; }

/* Whether all arguments were there and right; what is left is the working memory. */
static int complete(call *c) {
  c->at++;
  if (c->at != c->count || (c->list[c->at - 1].kind != NOTHING && c->list[c->at - 1].kind != FLOAT32)) refuse(c, FEWER);
  if (c->error) return 0;
  const argument *work = c->list + c->at - 1;
  c->work = work->kind == FLOAT32 ? work->value.at : NULL;
  c->room = c->work ? work->count : 0;
  return 1;
}

/* A piece of the working memory, NULL where that is too small: `lacks` says so after the last piece. Cache lines apart. */
static void *piece(call *c, int64_t size) {
  const int64_t from = c->used, whole = size > MOST ? MOST : (size + 15) / 16 * 16;
  c->used = from + whole + GAP > MOST ? MOST : from + whole + GAP;
  if (!c->work || c->used > c->room) return NULL;
  if (GAP) ASAN_POISON_MEMORY_REGION(c->work + from + size, sizeof(float) * (size_t)(whole - size + GAP));
  return c->work + from;
}

static int lacks(const call *c) { return !c->work || c->used > c->room; }

/* What a function returns when all is done, and when it lacks working memory. */
static int64_t done(const call *c) {
  if (GAP && c->work) ASAN_UNPOISON_MEMORY_REGION(c->work, sizeof(float) * (size_t)c->room);
  return c->error;
}

static int64_t needed(const call *c) {
  done(c);
  return c->used;
}

/* Working memory of `threads` threads, a piece each. */
typedef struct { float *first; int64_t step; } pieces;

static pieces piece_each(call *c, int64_t size, int threads) {
  pieces p = {NULL, size > MOST ? MOST : (size + 15) / 16 * 16 + GAP};
  p.first = piece(c, times(p.step, threads));
  if (GAP && p.first && !lacks(c))
    for (int i = 0; i < threads; i++)
      ASAN_POISON_MEMORY_REGION(p.first + i * p.step + size, sizeof(float) * (size_t)(p.step - size));
  return p;
}

#ifdef _OPENMP
int omp_get_max_threads(void);
int omp_get_thread_num(void);
static int most_threads(void) { return omp_get_max_threads(); }
static float *own(pieces p) { return p.first + omp_get_thread_num() * p.step; }
#else
static int most_threads(void) { return 1; }
static float *own(pieces p) { return p.first; }
#endif

/* The order in which both passes meet the nonzeros of a weight: counting sorts, the same for every instruction set.
 *
 * A table of rows ends in a seal, the numbers it was made for, so that a pass knows a table of another weight, tile or image
 * size at once. Everything else in a plan is trusted: it was made here, from an index whose every number was looked at. */

enum { SEAL = 16 };

/* Nonzeros in the order of a pass. rows: where each (channel, tap) begins. offset: of the activation it meets, in lanes.
 * slot: where its parameters are stored. */
typedef struct {
  int64_t count;
  const int32_t *rows, *offset, *slot;
} plan;

static int64_t keys_of(const geometry *s, int backward) {
  return backward ? tiles_of(s) * s->inputs * s->segments : (int64_t)s->outputs * s->kh * s->kw;
}

static void seal(const geometry *s, int64_t count, int backward, int32_t *to) {
  const int32_t numbers[SEAL] = {s->outputs, s->inputs, s->groups, s->kh, s->kw, s->sh, s->sw, s->ph, s->pw, s->h, s->w,
                                 s->oh, s->ow, s->tile, (int32_t)count, backward};
  memcpy(to, numbers, sizeof(numbers));
}

/* The next arguments as the plan of a pass: rows, offsets, slots. 0 where they were refused. */
static int planned(call *c, const geometry *s, int backward, plan *p) {
  int32_t expected[SEAL];
  const int64_t keys = keys_of(s, backward);
  if (!weights_of(s)) { refuse(c, LARGE); return 0; }
  p->rows = elements(c, INT32, keys + 1 + SEAL);
  if (c->error) return 0;
  p->count = next_count(c);
  seal(s, p->count, backward, expected);
  if (p->rows[0] != 0 || p->rows[keys] != p->count || memcmp(p->rows + keys + 1, expected, sizeof(expected)))
    refuse(c, FOREIGN);
  p->offset = elements(c, INT32, p->count);
  p->slot = elements(c, INT32, p->count);
  return !c->error;
}

/* Stable counting sort of `count` items: out[place] = in[...], ordered by key. rows, free: of keys + 1 numbers. */
static void sorted(const int32_t *in, int32_t *out, const int32_t *key, int64_t count, int64_t keys, int32_t *rows,
                   int32_t *free) {
  memset(rows, 0, sizeof(int32_t) * (size_t)(keys + 1));
  for (int64_t i = 0; i < count; i++) rows[key[in[i]] + 1]++;
  for (int64_t k = 0; k < keys; k++) rows[k + 1] += rows[k];
  memcpy(free, rows, sizeof(int32_t) * (size_t)(keys + 1));
  for (int64_t i = 0; i < count; i++) out[free[key[in[i]]]++] = in[i];
}

/* The two plans of a weight (outputs, inputs / groups, kh, kw) with nonzeros at the flat indices `index`, in any order. */
int64_t leanbayes_plan(const argument *list, int64_t length) {
  call c = opened(list, length);
  geometry s;
  if (!described(&c, &s)) return c.error;
  const int64_t weights = weights_of(&s), count = next_count(&c);
  if (!weights) refuse(&c, LARGE);
  const int32_t *index = elements(&c, INT32, count);
  if (count > weights) refuse(&c, COUNT);
  for (int64_t k = 0; !c.error && k < count; k++)
    if (index[k] < 0 || index[k] >= weights) refuse(&c, PLACE);
  if (c.error) return c.error;
  int32_t *rows[2], *offset[2], *slot[2];
  for (int i = 0; i < 2; i++) {
    rows[i] = elements(&c, INT32, keys_of(&s, i) + 1 + SEAL);
    offset[i] = elements(&c, INT32, count);
    slot[i] = elements(&c, INT32, count);
  }
  if (!complete(&c)) return c.error;
  const int64_t channels = s.inputs > s.outputs ? s.inputs : s.outputs;
  const int64_t keys = keys_of(&s, 0) > keys_of(&s, 1) ? keys_of(&s, 0) : keys_of(&s, 1);
  int32_t *oc = piece(&c, count), *ic = piece(&c, count), *tap = piece(&c, count), *key = piece(&c, count);
  int32_t *order = piece(&c, count), *half = piece(&c, count), *by_channel = piece(&c, channels + 1);
  int32_t *free = piece(&c, (keys > channels ? keys : channels) + 1);
  if (lacks(&c)) return needed(&c);

  const int taps = s.kh * s.kw, per_group = s.inputs / s.groups, out_per_group = s.outputs / s.groups;
  for (int64_t k = 0; k < count; k++) {
    oc[k] = index[k] / (per_group * taps);
    ic[k] = index[k] / taps % per_group + oc[k] / out_per_group * per_group;
    tap[k] = index[k] % taps;
    order[k] = (int32_t)k;
  }
  sorted(order, half, ic, count, s.inputs, by_channel, free);
  for (int64_t k = 0; k < count; k++) key[k] = oc[k] * taps + tap[k];
  sorted(half, slot[0], key, count, keys_of(&s, 0), rows[0], free);
  c.at = 2; /* of the index; equal ones have become neighbours */
  for (int64_t k = 1; k < count; k++)
    if (index[slot[0][k]] == index[slot[0][k - 1]]) { refuse(&c, TWICE); return done(&c); }
  for (int64_t k = 0; k < count; k++) {
    const int32_t at = slot[0][k];
    offset[0][k] = (tap[at] / s.kw * s.w + tap[at] % s.kw) * s.inputs + ic[at];
  }
  sorted(order, half, oc, count, s.outputs, by_channel, free);
  for (int64_t k = 0; k < count; k++) {
    const int a = tap[k] / s.kw, b = tap[k] % s.kw, a_in = a / s.sh, b_in = b / s.sw;
    const phase r = s.rows_of[a % s.sh], l = s.cols_of[b % s.sw];
    const int segment = s.along_blocks ? r.start * s.kw + r.count * l.start + a_in * l.count + b_in
                                       : r.start * s.sw + b % s.sw * r.count + a_in;
    key[k] = (oc[k] / s.tile * s.inputs + ic[k]) * s.segments + segment;
  }
  sorted(half, slot[1], key, count, keys_of(&s, 1), rows[1], free);
  for (int64_t k = 0; k < count; k++) {
    const int32_t at = slot[1][k];
    const int a = tap[at] / s.kw / s.sh, b = tap[at] % s.kw / s.sw;
    offset[1][k] = (s.along_blocks ? 0 : -(a * s.pad.width + b) * s.tile) + oc[at] % s.tile;
  }
  for (int i = 0; i < 2; i++) seal(&s, count, i, rows[i] + keys_of(&s, i) + 1);
  return done(&c);
}

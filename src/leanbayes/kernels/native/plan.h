/* The order in which both passes meet the nonzeros of a weight: counting sorts, the same for every instruction set. */

/* Stable counting sort of `count` items: out[place] = in[...], ordered by key. */
static void sorted(const int32_t *in, int32_t *out, const int32_t *key, int64_t count, int64_t keys, int32_t *rows) {
  memset(rows, 0, sizeof(int32_t) * (keys + 1));
  for (int64_t i = 0; i < count; i++) rows[key[in[i]] + 1]++;
  for (int64_t k = 0; k < keys; k++) rows[k + 1] += rows[k];
  int32_t *next = malloc(sizeof(int32_t) * (keys + 1));
  memcpy(next, rows, sizeof(int32_t) * (keys + 1));
  for (int64_t i = 0; i < count; i++) out[next[key[in[i]]]++] = in[i];
  free(next);
}

/* The two plans of a weight (outputs, inputs / groups, kh, kw) with nonzeros at the flat indices `index`, in any order. */
void leanbayes_plan(const int32_t *shape, int64_t count, const int32_t *index, int32_t *rows_forward,
                    int32_t *offset_forward, int32_t *slot_forward, int32_t *rows_backward, int32_t *offset_backward,
                    int32_t *slot_backward) {
  const geometry s = described(shape);
  const int taps = s.kh * s.kw, per_group = s.inputs / s.groups, out_per_group = s.outputs / s.groups;
  int32_t *work = malloc(sizeof(int32_t) * 6 * (count + 1));
  int32_t *oc = work, *ic = oc + count, *tap = ic + count, *key = tap + count, *order = key + count, *half = order + count;
  for (int64_t k = 0; k < count; k++) {
    oc[k] = index[k] / (per_group * taps);
    ic[k] = index[k] / taps % per_group + oc[k] / out_per_group * per_group;
    tap[k] = index[k] % taps;
    order[k] = (int32_t)k;
  }
  int32_t *scratch = malloc(sizeof(int32_t) * ((s.inputs > s.outputs ? s.inputs : s.outputs) + 1));
  sorted(order, half, ic, count, s.inputs, scratch);
  for (int64_t k = 0; k < count; k++) key[k] = oc[k] * taps + tap[k];
  sorted(half, slot_forward, key, count, (int64_t)s.outputs * taps, rows_forward);
  for (int64_t k = 0; k < count; k++) {
    const int32_t at = slot_forward[k];
    offset_forward[k] = (tap[at] / s.kw * s.w + tap[at] % s.kw) * s.inputs + ic[at];
  }
  sorted(order, half, oc, count, s.outputs, scratch);
  for (int64_t k = 0; k < count; k++) {
    const int a = tap[k] / s.kw, b = tap[k] % s.kw, a_in = a / s.sh, b_in = b / s.sw;
    const phase r = s.rows_of[a % s.sh], c = s.cols_of[b % s.sw];
    const int segment = s.along_blocks ? r.start * s.kw + r.count * c.start + a_in * c.count + b_in
                                       : r.start * s.sw + b % s.sw * r.count + a_in;
    key[k] = (oc[k] / s.tile * s.inputs + ic[k]) * s.segments + segment;
  }
  const int64_t tiles = (s.outputs + s.tile - 1) / s.tile;
  sorted(half, slot_backward, key, count, tiles * s.inputs * s.segments, rows_backward);
  for (int64_t k = 0; k < count; k++) {
    const int32_t at = slot_backward[k];
    const int a = tap[at] / s.kw / s.sh, b = tap[at] % s.kw / s.sw;
    offset_backward[k] = (s.along_blocks ? 0 : -(a * s.pad.width + b) * s.tile) + oc[at] % s.tile;
  }
  free(scratch);
  free(work);
}

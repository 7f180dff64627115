// constants: WIDTH SUBGROUP FLOATS HALVES
// Attention of a few rows over one split of the keys. 8 slots of keys have 8 invocations each, which
// share the columns: K and V are read once for ROWS rows, 128 bytes at a time. Gives each row's maximum,
// sum and values of the split; merge.wgsl joins them. Grid: split, rows, batch entry and key/value head.
//#if SUBGROUP
enable subgroups;
//#end
//#include attention.wgsl
//#include scored.wgsl
//#include load.wgsl x=v width=p.dv at=3 halves=HALVES
@group(0) @binding(7) var<storage, read_write> partials: array<u32>;

const LANES = 8u;
const SLOTS = 8u;
const ROWS = DECODE_ROWS - WIDTH / 256u * (DECODE_ROWS / 2u);
const COLUMNS = WIDTH / 32u; // vec4 of an invocation
const EACH = max(SUBGROUP, 1u); // lanes that shuffle
const PARTS = LANES / EACH;
var<workgroup> part: array<vec4f, ROWS * SLOTS * PARTS>;
var<workgroup> tops: array<f32, ROWS * SLOTS>;
var<workgroup> sums: array<f32, ROWS * SLOTS>;
var<workgroup> values: array<vec4f, 64>;

//#include main.wgsl
  let split = index % p.splits;
  let tile = index / p.splits % p.tiles;
  let head = index / p.splits / p.tiles;
  if (head >= p.batch * p.kv_heads) { return; }
  let b = head / p.kv_heads;
  let g = head % p.kv_heads;
  let e = entry_of(b);
  let end_row = min(p.rows, e.queries * p.group);
  let first_row = p.first_row + tile * ROWS;
  if (first_row >= end_row) { return; }
  let count = min(ROWS, end_row - first_row);
  let lane = t % LANES;
  let slot = t / LANES;

  var q_row_of = array<vec4f, ROWS * COLUMNS>();
  var acc = array<vec4f, ROWS * COLUMNS>();
  var m = array<f32, ROWS>();
  var sum = array<f32, ROWS>();
  var seen = array<vec2i, ROWS>();
  for (var r = 0u; r < ROWS; r++) {
    m[r] = LOWEST;
    let row = min(first_row + r, end_row - 1u);
    seen[r] = seen_by(e, row / p.group);
    for (var c = 0u; c < COLUMNS; c++) {
      let column = lane + c * LANES;
      if (4u * column < p.dk) { q_row_of[r * COLUMNS + c] = p.q_scale * load_q(q_row(e, b, g * p.group + row % p.group, row / p.group), column); }
    }
  }
  // Of the split, the keys that some row sees.
  let last = seen_by(e, (first_row + count - 1u) / p.group);
  let begin = max(i32(split * p.split_keys), seen[0].x / i32(TILE) * i32(TILE));
  let end = min(i32((split + 1u) * p.split_keys), last.y);
  for (var key = begin; key < end; key += i32(TILE)) {
    var s = array<vec4f, ROWS>(); // component u: key + slot + 8 u
    for (var u = 0u; u < 4u; u++) {
      let j = key + i32(slot + u * SLOTS);
      if (j < end) {
        let at = k_row(e, b, g, u32(j));
        for (var c = 0u; c < COLUMNS; c++) {
          let column = lane + c * LANES;
          if (4u * column < p.dk) {
            let x = load_k(at, column);
//#rows
            if (r < count) { s[r][u] += dot(q_row_of[r * COLUMNS + c], x); }
//#done
          }
        }
      }
    }
    // Sums over the lanes of a slot.
//#if SUBGROUP
//#rows
    var x = s[r];
    for (var step = 1u; step < SUBGROUP; step *= 2u) { x += subgroupShuffleXor(x, step); }
    s[r] = x;
//#done
//#end
    if (PARTS > 1u) {
      workgroupBarrier();
      if (lane % EACH == 0u) { for (var r = 0u; r < ROWS; r++) { part[(r * SLOTS + slot) * PARTS + lane / EACH] = s[r]; } }
      workgroupBarrier();
//#rows
      var x = vec4f();
      for (var i = 0u; i < PARTS; i++) { x += part[(r * SLOTS + slot) * PARTS + i]; }
      s[r] = x;
//#done
    }
    var visible = array<vec4<bool>, ROWS>();
//#rows
    if (r < count) {
      let row = first_row + r;
      var top = m[r];
      for (var u = 0u; u < 4u; u++) {
        let j = key + i32(slot + u * SLOTS);
        let one = score(e, b, g * p.group + row % p.group, row / p.group, u32(j), s[r][u], j < end && j >= seen[r].x && j < seen[r].y);
        s[r][u] = finite(one.value);
        visible[r][u] = one.visible;
        top = raised(top, Score(s[r][u], one.visible));
      }
      let f = exponential(m[r] - top);
      m[r] = top;
      var add = 0.0;
      for (var c = 0u; c < COLUMNS; c++) { acc[r * COLUMNS + c] *= f; }
      for (var u = 0u; u < 4u; u++) {
        s[r][u] = weight(s[r][u], top);
        if (visible[r][u]) { add += s[r][u]; }
      }
      sum[r] = sum[r] * f + add;
    }
//#done
    for (var u = 0u; u < 4u; u++) {
      let j = key + i32(slot + u * SLOTS);
      if (j < end) {
        let at = b * p.v.x + g * p.v.y + stored(e, b, u32(j)) * p.v.z;
        for (var c = 0u; c < COLUMNS; c++) {
          let column = lane + c * LANES;
          if (4u * column < p.dv) {
            let x = load_v(at, column);
//#rows
            if (r < count && visible[r][u]) { acc[r * COLUMNS + c] += s[r][u] * x; }
//#done
          }
        }
      }
    }
  }
  if (lane == 0u) {
    for (var r = 0u; r < ROWS; r++) {
      tops[r * SLOTS + slot] = m[r];
      sums[r * SLOTS + slot] = sum[r];
    }
  }
  workgroupBarrier();
  let width = (p.dv + 3u) / 4u * 4u + 2u;
  for (var r = 0u; r < count; r++) {
    var top = LOWEST;
    for (var i = 0u; i < SLOTS; i++) { top = max(top, tops[r * SLOTS + i]); }
    let mine = exponential(m[r] - top);
    let at = (row_index(b, g, first_row + r) * p.splits + split) * width;
    if (t == 0u) {
      var all = 0.0;
      for (var i = 0u; i < SLOTS; i++) { all += sums[r * SLOTS + i] * exponential(tops[r * SLOTS + i] - top); }
      partials[at] = bitcast<u32>(top);
      partials[at + 1u] = bitcast<u32>(all);
    }
    for (var c = 0u; c < COLUMNS; c++) {
      workgroupBarrier();
      values[t] = acc[r * COLUMNS + c] * mine;
      workgroupBarrier();
      let column = lane + c * LANES;
      if (slot == 0u && 4u * column < p.dv) {
        var x = values[lane];
        for (var i = 1u; i < SLOTS; i++) { x += values[i * LANES + lane]; }
        for (var k = 0u; k < 4u; k++) { partials[at + 2u + 4u * column + k] = bitcast<u32>(x[k]); }
      }
    }
  }
}

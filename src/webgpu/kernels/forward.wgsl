// constants: WIDTH SUBGROUP FLOATS HALVES
// Attention of a tile of rows in one pass over the keys, with a running maximum (arXiv:1805.02867).
// 8 invocations share the ROWS rows of a row group: of scores each has every eighth key, of values
// every eighth vec4. Grid: tile of rows, batch entry and key/value head.
//#if SUBGROUP
enable subgroups;
//#end
//#include attention.wgsl
//#include scored.wgsl
//#include load.wgsl x=v width=p.dv at=3 halves=HALVES
@group(0) @binding(7) var<storage, read_write> out: array<u32>;
@group(0) @binding(8) var<storage, read_write> lse: array<u32>;

const LANES = 8u;
const CHUNK = 8u; // vec4 of each row that are staged at once
const CHUNKS = WIDTH / 32u;
const TILE_ROWS = NARROW_ROWS - WIDTH / 256u * (NARROW_ROWS - WIDE_ROWS);
const ROWS = TILE_ROWS / LANES;
const KEYS = TILE / LANES; // of an invocation
const HIDDEN = 0x80000000u; // the weight of a hidden key: -0
var<workgroup> qs: array<vec4f, TILE_ROWS * (CHUNK + 1u)>;
var<workgroup> kv: array<vec4f, TILE * (CHUNK + 1u)>;
var<workgroup> weights: array<vec4u, TILE * LANES>; // bits of the rows of a row group, key by key
var<workgroup> part: array<f32, TILE_ROWS * LANES>;
var<workgroup> odd_values: atomic<u32>; // a value is NaN or infinite: 0 times it is not 0

//#include main.wgsl
  let head = index / p.tiles;
  if (head >= p.batch * p.kv_heads) { return; }
  let b = head / p.kv_heads;
  let g = head % p.kv_heads;
  let e = entry_of(b);
  let end_row = min(p.rows, e.queries * p.group);
  // In causal order the last rows see most keys: they come first.
  let first_row = p.first_row + (p.tiles - 1u - index % p.tiles) * TILE_ROWS;
  if (first_row >= end_row) { return; }
  let last_row = min(first_row + TILE_ROWS, end_row) - 1u;
  let lane = t % LANES;
  let rows_at = t / LANES * ROWS;
  let begin = max(seen_by(e, first_row / p.group).x, 0) / i32(TILE) * i32(TILE);
  let end = seen_by(e, last_row / p.group).y;

  var m = array<f32, ROWS>();
  var top = array<f32, ROWS>();
  var sum = array<f32, ROWS>();
  var acc = array<vec4f, ROWS * CHUNKS>();
  var seen = array<vec2i, ROWS>();
  for (var r = 0u; r < ROWS; r++) {
    m[r] = LOWEST;
    let row = first_row + rows_at + r;
    seen[r] = select(vec2i(), seen_by(e, row / p.group), row < end_row);
  }
  for (var key = begin; key < end; key += i32(TILE)) {
    var s = array<vec4f, ROWS>(); // component j: key + lane + 8 j
    var visible = array<vec4<bool>, ROWS>();
    for (var chunk = 0u; chunk == 0u || chunk * CHUNK * 4u < p.dk; chunk++) {
      workgroupBarrier();
      for (var i = t; i < TILE_ROWS * CHUNK; i += 64u) {
        let row = first_row + i / CHUNK;
        let c = chunk * CHUNK + i % CHUNK;
        var x = vec4f();
        if (row < end_row && c * 4u < p.dk) { x = p.q_scale * load_q(q_row(e, b, g * p.group + row % p.group, row / p.group), c); }
        qs[i / CHUNK * (CHUNK + 1u) + i % CHUNK] = x;
      }
      for (var i = t; i < TILE * CHUNK; i += 64u) {
        let j = key + i32(i / CHUNK);
        let c = chunk * CHUNK + i % CHUNK;
        var x = vec4f();
        if (j < end && c * 4u < p.dk) { x = load_k(k_row(e, b, g, u32(j)), c); }
        kv[i / CHUNK * (CHUNK + 1u) + i % CHUNK] = x;
      }
      workgroupBarrier();
      for (var c = 0u; c < CHUNK; c++) {
        let k0 = kv[lane * (CHUNK + 1u) + c];
        let k1 = kv[(lane + LANES) * (CHUNK + 1u) + c];
        let k2 = kv[(lane + 2u * LANES) * (CHUNK + 1u) + c];
        let k3 = kv[(lane + 3u * LANES) * (CHUNK + 1u) + c];
//#rows
        let x = qs[(rows_at + r) * (CHUNK + 1u) + c];
        s[r] += vec4f(dot(x, k0), dot(x, k1), dot(x, k2), dot(x, k3));
//#done
      }
    }
//#rows
    let row = first_row + rows_at + r;
    top[r] = m[r];
    for (var j = 0u; j < KEYS; j++) {
      let at = key + i32(lane + j * LANES);
      let one = score(e, b, g * p.group + row % p.group, row / p.group, u32(at), s[r][j], at >= seen[r].x && at < seen[r].y);
      s[r][j] = finite(one.value);
      visible[r][j] = one.visible;
      top[r] = raised(top[r], Score(s[r][j], one.visible));
    }
//#done
    // The maximum over the lanes of a row group.
//#if SUBGROUP
//#rows
    var x = top[r];
    for (var step = 1u; step < SUBGROUP; step *= 2u) { x = max(x, subgroupShuffleXor(x, step)); }
    top[r] = x;
//#done
//#end
    if (SUBGROUP < LANES) {
      for (var r = 0u; r < ROWS; r++) { part[(rows_at + r) * LANES + lane] = top[r]; }
      workgroupBarrier();
//#rows
      for (var i = 0u; i < LANES; i++) { top[r] = max(top[r], part[(rows_at + r) * LANES + i]); }
//#done
    }
//#rows
    let f = exponential(m[r] - top[r]);
    m[r] = top[r];
    sum[r] *= f;
    for (var c = 0u; c < CHUNKS; c++) { acc[r * CHUNKS + c] *= f; }
//#done
    for (var j = 0u; j < KEYS; j++) {
      var bits = vec4u(HIDDEN);
//#rows
      if (visible[r][j]) {
        let x = weight(s[r][j], top[r]);
        sum[r] += x;
        bits[r] = bitcast<u32>(x);
      }
//#done
      weights[(lane + j * LANES) * LANES + t / LANES] = bits;
    }
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
      if (chunk * CHUNK * 4u >= p.dv) { break; }
      workgroupBarrier();
      for (var i = t; i < TILE * CHUNK; i += 64u) {
        let j = key + i32(i / CHUNK);
        let c = chunk * CHUNK + i % CHUNK;
        var x = vec4f();
        if (j < end && c * 4u < p.dv) { x = load_v(b * p.v.x + g * p.v.y + stored(e, b, u32(j)) * p.v.z, c); }
        kv[i / CHUNK * (CHUNK + 1u) + i % CHUNK] = x;
        if (any((bitcast<vec4u>(x) & vec4u(0x7f800000u)) == vec4u(0x7f800000u))) { atomicOr(&odd_values, 1u); }
      }
      workgroupBarrier();
      // A tile's sum of its own: the error grows with the number of tiles, not with that of keys.
      var tile = array<vec4f, ROWS>();
      if (atomicLoad(&odd_values) == 0u) {
        for (var j = 0u; j < TILE; j++) {
          let x = kv[j * (CHUNK + 1u) + lane];
          let w = bitcast<vec4f>(weights[j * LANES + t / LANES]);
//#rows
          tile[r] += w[r] * x;
//#done
        }
      } else {
        for (var j = 0u; j < TILE; j++) {
          let x = kv[j * (CHUNK + 1u) + lane];
          let bits = weights[j * LANES + t / LANES];
//#rows
          if (bits[r] != HIDDEN) { tile[r] += bitcast<f32>(bits[r]) * x; }
//#done
        }
      }
      for (var r = 0u; r < ROWS; r++) { acc[r * CHUNKS + chunk] += tile[r]; }
    }
  }
  workgroupBarrier();
  for (var r = 0u; r < ROWS; r++) { part[(rows_at + r) * LANES + lane] = sum[r]; }
  workgroupBarrier();
  for (var r = 0u; r < ROWS; r++) {
    let row = first_row + rows_at + r;
    if (row >= end_row) { continue; }
    var all = 0.0;
    for (var i = 0u; i < LANES; i++) { all += part[(rows_at + r) * LANES + i]; }
    let i = row / p.group;
    let h = g * p.group + row % p.group;
    let below = denominator(h, m[r], all);
    let at = b * p.out.x + h * p.out.y + (e.first_query + i) * p.out.z;
    for (var c = 0u; c < CHUNKS; c++) {
      let column = 4u * (lane + c * CHUNK);
      var x = vec4u();
      if (all != 0.0) { x = bitcast<vec4u>(acc[r * CHUNKS + c] / below); }
      if (is_nan(bitcast<u32>(all))) { x = vec4u(NOT_A_NUMBER); }
      for (var k = 0u; k < 4u; k++) { if (column + k < p.dv) { out[at + column + k] = x[k]; } }
    }
    if (lane == 0u) {
      if (p.lse.w != 0u) {
        let place = 2u * row_index(b, g, row);
        lse[place] = bitcast<u32>(m[r]);
        lse[place + 1u] = bitcast<u32>(all);
      } else {
        lse[b * p.lse.x + h * p.lse.y + (e.first_query + i) * p.lse.z] = lse_of(h, m[r], all);
      }
    }
  }
}

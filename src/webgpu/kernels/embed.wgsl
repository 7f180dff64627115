// constants: TYPE
// Row i of y = factor[i] times row index[i] of a table, or that is added. Rows of other parts of a
// table that is cut are left as they are. An invocation writes four columns.
//#params EmbedBlock
@group(0) @binding(1) var<storage, read> numbers: array<vec4u>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#include numbers.wgsl

//#include main.wgsl
  let quads = (p.columns + 3u) / 4u;
  let i = index * 64u + t;
  if (i >= p.rows * quads) { return; }
  let row = i / quads;
  let c = i % quads;
  let entry = lists[p.indices + row] - p.first_row;
  if (entry >= p.table_rows) { return; }
  let unit = c / GROUPS;
  var v = numbers_of(numbers[entry * p.units + unit], c % GROUPS) * scale_of(entry, unit);
  if (p.factors != NONE) { v *= bitcast<f32>(lists[p.factors + row]); }
  for (var k = 0u; k < 4u; k++) {
    if (4u * c + k >= p.columns) { return; }
    let at = p.y_first + row * p.y_stride + 4u * c + k;
    y[at] = select(v[k], y[at] + v[k], p.adds != 0u);
  }
}

// constants: TYPE TAIL
// y = f(x W^T + bias), 64 rows times 64 outputs a workgroup, 8 times 8 an invocation; 16 columns at
// a time lie in workgroup memory, by column.
//#include linear.wgsl
var<workgroup> xs: array<vec4f, 256>;
var<workgroup> ws: array<vec4f, 256>;

fn load_x(row: u32, c: u32) -> vec4f {
  if (4u * c >= p.columns) { return vec4f(); }
  return raw_x(row, c);
}

fn load_w(output: u32, c: u32) -> vec4f {
  let row = min(output, p.outputs - 1u);
  let unit = min(c / GROUPS, p.units - 1u);
  return numbers_of(numbers[row * p.units + unit], c % GROUPS) * scale_of(row, unit);
}

fn write_four(row: u32, output: u32, sums: vec4f) {
  if (row >= p.rows) { return; }
  for (var o = output; o < min(output + 4u, p.outputs); o++) {
    write(p.y_first + row * p.y_stride + o, activated(p.code, finished(sums[o - output], o)));
  }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) n: vec3u, @builtin(local_invocation_index) t: u32) {
  let tile = w.y * n.x + w.x;
  let across = (p.outputs + 63u) / 64u;
  let first_output = tile % across * 64u;
  let first_row = tile / across * 64u;
  if (first_row >= p.rows) { return; }
  let four = t % 16u;
  let quad = t / 16u;
  // Of row r and of row 4 + r: four outputs, and the next four.
  var s = array<vec4f, 8>();
  var next = array<vec4f, 8>();
  for (var c = 0u; c < p.columns; c += 16u) {
    var x = array<vec4f, 4>();
    var v = array<vec4f, 4>();
//#rows
    x[r] = load_x(first_row + 4u * four + r, c / 4u + quad);
    v[r] = load_w(first_output + 4u * four + r, c / 4u + quad);
//#done
    workgroupBarrier();
//#rows
    xs[(4u * quad + r) * 16u + four] = vec4f(x[0][r], x[1][r], x[2][r], x[3][r]);
    ws[(4u * quad + r) * 16u + four] = vec4f(v[0][r], v[1][r], v[2][r], v[3][r]);
//#done
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
      let a = xs[k * 16u + 2u * (t % 8u)];
      let b = xs[k * 16u + 2u * (t % 8u) + 1u];
      let c0 = ws[k * 16u + 2u * (t / 8u)];
      let c1 = ws[k * 16u + 2u * (t / 8u) + 1u];
//#rows
      s[r] += a[r] * c0; next[r] += a[r] * c1;
      s[4u + r] += b[r] * c0; next[4u + r] += b[r] * c1;
//#done
    }
  }
  let row = first_row + 8u * (t % 8u);
  let output = first_output + 8u * (t / 8u);
//#rows
  write_four(row + r, output, s[r]); write_four(row + r, output + 4u, next[r]);
  write_four(row + 4u + r, output, s[4u + r]); write_four(row + 4u + r, output + 4u, next[4u + r]);
//#done
}

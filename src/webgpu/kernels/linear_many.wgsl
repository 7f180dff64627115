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

//#include main.wgsl
  let across = (p.outputs + 63u) / 64u;
  let first_output = index % across * 64u;
  let first_row = index / across * 64u;
  if (first_row >= p.rows) { return; }
  let four = t % 16u;
  let quad = t / 16u;
  var s0 = vec4f(); var r0 = vec4f();
  var s1 = vec4f(); var r1 = vec4f();
  var s2 = vec4f(); var r2 = vec4f();
  var s3 = vec4f(); var r3 = vec4f();
  var s4 = vec4f(); var r4 = vec4f();
  var s5 = vec4f(); var r5 = vec4f();
  var s6 = vec4f(); var r6 = vec4f();
  var s7 = vec4f(); var r7 = vec4f();
  for (var c = 0u; c < p.columns; c += 16u) {
    let x0 = load_x(first_row + 4u * four, c / 4u + quad);
    let x1 = load_x(first_row + 4u * four + 1u, c / 4u + quad);
    let x2 = load_x(first_row + 4u * four + 2u, c / 4u + quad);
    let x3 = load_x(first_row + 4u * four + 3u, c / 4u + quad);
    let w0 = load_w(first_output + 4u * four, c / 4u + quad);
    let w1 = load_w(first_output + 4u * four + 1u, c / 4u + quad);
    let w2 = load_w(first_output + 4u * four + 2u, c / 4u + quad);
    let w3 = load_w(first_output + 4u * four + 3u, c / 4u + quad);
    workgroupBarrier();
    for (var j = 0u; j < 4u; j++) {
      xs[(4u * quad + j) * 16u + four] = vec4f(x0[j], x1[j], x2[j], x3[j]);
      ws[(4u * quad + j) * 16u + four] = vec4f(w0[j], w1[j], w2[j], w3[j]);
    }
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
      let a = xs[k * 16u + 2u * (t % 8u)];
      let b = xs[k * 16u + 2u * (t % 8u) + 1u];
      let c0 = ws[k * 16u + 2u * (t / 8u)];
      let c1 = ws[k * 16u + 2u * (t / 8u) + 1u];
      s0 += a.x * c0; r0 += a.x * c1;
      s1 += a.y * c0; r1 += a.y * c1;
      s2 += a.z * c0; r2 += a.z * c1;
      s3 += a.w * c0; r3 += a.w * c1;
      s4 += b.x * c0; r4 += b.x * c1;
      s5 += b.y * c0; r5 += b.y * c1;
      s6 += b.z * c0; r6 += b.z * c1;
      s7 += b.w * c0; r7 += b.w * c1;
    }
  }
  let row = first_row + 8u * (t % 8u);
  let output = first_output + 8u * (t / 8u);
  write_four(row + 0u, output, s0); write_four(row + 0u, output + 4u, r0);
  write_four(row + 1u, output, s1); write_four(row + 1u, output + 4u, r1);
  write_four(row + 2u, output, s2); write_four(row + 2u, output + 4u, r2);
  write_four(row + 3u, output, s3); write_four(row + 3u, output + 4u, r3);
  write_four(row + 4u, output, s4); write_four(row + 4u, output + 4u, r4);
  write_four(row + 5u, output, s5); write_four(row + 5u, output + 4u, r5);
  write_four(row + 6u, output, s6); write_four(row + 6u, output + 4u, r6);
  write_four(row + 7u, output, s7); write_four(row + 7u, output + 4u, r7);
}

// The sum over all 64 invocations of a workgroup, in its memory `part`.
fn total(t: u32, value: $type) -> $type {
  part[t] = value;
  for (var step = 32u; step > 0u; step >>= 1u) {
    workgroupBarrier();
    if (t < step) { part[t] += part[t + step]; }
  }
  workgroupBarrier();
  let sum = part[0];
  workgroupBarrier();
  return sum;
}

// tables.mjs rejects a wire.inc with types or calls that it cannot translate completely.

import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, expect, it } from 'vitest';

const root = fileURLToPath(new URL('../../', import.meta.url));
const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

/** Runs tables.mjs in a copy of its folder whose wire.inc has `lines` before the first function. */
function tablesWith(...lines: string[]): { status: number | null; errors: string; wire: () => string } {
  const folder = mkdtempSync(join(tmpdir(), 'tables-'));
  folders.push(folder);
  const bindings = join(folder, 'bindings');
  mkdirSync(bindings, { recursive: true });
  symlinkSync(join(root, 'src'), join(folder, 'src'));
  for (const name of [
    'tables.mjs',
    'parts.json',
    'package.json',
    'arguments.h',
    'results.h',
    'attention.cc',
    'planned.cc',
    'models.cc',
    'call.cc',
    'call.h',
  ]) {
    cpSync(join(root, 'bindings', name), join(bindings, name));
  }
  const first = 'WIRE_BASE_FUNCTION(argumentBlock,';
  const wire = readFileSync(join(root, 'bindings', 'wire.inc'), 'utf8');
  expect(wire).toContain(first);
  writeFileSync(join(bindings, 'wire.inc'), wire.replace(first, [...lines, first].join('\n')));
  const { status, stderr } = spawnSync(process.execPath, [join(bindings, 'tables.mjs')], { encoding: 'utf8' });
  return { status, errors: stderr, wire: () => readFileSync(join(bindings, 'src', 'generated', 'wire.ts'), 'utf8') };
}

it('writes functions with the types of all their parameters', () => {
  const { status, errors, wire } = tablesWith('WIRE_FUNCTION(added, added, double(int32_t a, uint32_t b, bool c, int32_t d))');
  expect(errors).toBe('');
  expect(status).toBe(0);
  expect(wire()).toContain('  added(a: Int32, b: Uint32, c: boolean, d: Int32): number;\n');
});

it.each([
  ['a parameter of a type that numbers do not carry', 'int32_t(int64_t a)', /added: int64_t is no type/],
  ['a result of such a type', 'uint64_t()', /added: uint64_t is no type/],
  ['a parameter without a name', 'int32_t(int32_t)', /added/],
  ['no signature', 'int32_t', /added: "int32_t" is no signature/],
])('refuses a function with %s', (_, signature, message) => {
  const { status, errors } = tablesWith(`WIRE_FUNCTION(added, added, ${signature})`);
  expect(status).not.toBe(0);
  expect(errors).toMatch(message);
});

// Every source file includes exactly the standard headers for the names that it uses. It must not rely on headers that
// another standard header includes, because those differ between versions of the library.
//
//   node --test tests/native/includes.test.mjs

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The names of namespace std by header: all that this project uses, and some related ones. */
const NAMES = {
  algorithm:
    'adjacent_find all_of any_of binary_search clamp copy copy_backward copy_if copy_n count count_if equal equal_range fill fill_n find find_if find_if_not for_each for_each_n generate includes is_sorted lexicographical_compare lower_bound make_heap max max_element merge min min_element minmax mismatch next_permutation none_of nth_element partial_sort partition pop_heap push_heap ranges::all_of ranges::any_of ranges::contains ranges::copy ranges::count ranges::count_if ranges::equal ranges::fill ranges::find ranges::find_if ranges::for_each ranges::max ranges::max_element ranges::min ranges::none_of ranges::reverse ranges::sort remove_if replace reverse rotate search set_difference shuffle sort sort_heap stable_sort swap_ranges transform unique upper_bound',
  array: 'array to_array',
  barrier: 'barrier',
  atomic: 'atomic atomic_ref memory_order_acq_rel memory_order_acquire memory_order_relaxed memory_order_release',
  bit: 'bit_cast bit_ceil bit_floor bit_width countl_zero countr_zero endian has_single_bit popcount',
  cctype: 'isalnum isalpha isdigit isprint ispunct isspace isxdigit tolower toupper',
  charconv: 'chars_format from_chars to_chars',
  chrono: 'chrono',
  cfenv: 'fegetenv fegetround fenv_t fesetenv fesetround',
  cmath:
    'atan ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp llround log log10 log1p log2 lround nan nearbyint nextafter pow rint round signbit sin sqrt tan tanh trunc',
  compare: 'partial_ordering strong_ordering',
  complex: 'complex',
  concepts: 'convertible_to floating_point integral invocable same_as',
  condition_variable: 'condition_variable',
  csignal: 'raise signal',
  cstddef: 'byte max_align_t nullptr_t',
  cstdio: 'fclose ferror fflush fgets fopen fprintf fputc fputs fread fwrite perror printf puts setvbuf snprintf',
  cstdlib: 'abort aligned_alloc atexit atoi atoll calloc exit free getenv malloc realloc strtod strtof strtol strtoll strtoull',
  cstring: 'memchr memcmp memcpy memmove memset strchr strcmp strerror strlen strncmp strstr',
  ctime: 'gmtime strftime time time_t',
  deque: 'deque',
  exception: 'current_exception exception exception_ptr rethrow_exception terminate',
  filesystem: 'filesystem',
  fstream: 'ifstream ofstream',
  functional: 'bind_front equal_to function greater hash invoke less minus multiplies plus ref',
  initializer_list: 'initializer_list',
  iostream: 'cerr cin cout',
  iterator:
    'advance back_inserter distance forward_iterator_tag inserter istreambuf_iterator iterator_traits make_move_iterator next ostream_iterator prev random_access_iterator_tag reverse_iterator',
  limits: 'numeric_limits',
  map: 'map multimap',
  memory:
    'addressof align allocator allocator_arg allocator_traits assume_aligned construct_at default_delete destroy_at enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr',
  mutex: 'adopt_lock call_once defer_lock lock_guard mutex once_flag recursive_mutex scoped_lock try_to_lock unique_lock',
  new: 'align_val_t bad_alloc get_new_handler launder new_handler nothrow nothrow_t set_new_handler',
  numbers: 'numbers',
  numeric: 'accumulate exclusive_scan gcd inner_product iota lcm midpoint partial_sum reduce',
  optional: 'nullopt optional',
  queue: 'priority_queue queue',
  random:
    'bernoulli_distribution discrete_distribution mt19937 mt19937_64 normal_distribution random_device seed_seq uniform_int_distribution uniform_real_distribution',
  regex: 'regex regex_error regex_search',
  set: 'multiset set',
  span: 'as_bytes as_writable_bytes dynamic_extent span',
  sstream: 'istringstream ostringstream stringstream',
  stdexcept: 'domain_error invalid_argument length_error logic_error out_of_range overflow_error runtime_error',
  string: 'getline stod stof stoi stol stoll stoul stoull string to_string',
  string_view: 'string_view',
  system_error: 'errc error_code generic_category make_error_code system_category system_error',
  thread: 'this_thread thread',
  tuple: 'apply forward_as_tuple ignore make_tuple tie tuple tuple_cat tuple_element_t tuple_size_v',
  type_traits:
    'add_const_t bool_constant common_type_t conditional_t decay_t enable_if_t false_type integral_constant invoke_result_t is_arithmetic_v is_base_of_v is_const_v is_constant_evaluated is_convertible_v is_enum_v is_floating_point_v is_integral_v is_invocable_v is_nothrow_move_assignable_v is_nothrow_move_constructible_v is_pointer_v is_same_v is_signed_v is_standard_layout_v is_trivial_v is_trivially_copyable_v is_unsigned_v is_void_v make_signed_t make_unsigned_t remove_const_t remove_cv_t remove_cvref_t remove_pointer_t remove_reference_t true_type type_identity type_identity_t underlying_type_t void_t',
  unordered_map: 'unordered_map',
  unordered_set: 'unordered_set',
  utility:
    'as_const cmp_equal cmp_greater cmp_less cmp_less_equal declval exchange forward in_place in_range index_sequence integer_sequence make_index_sequence make_pair move move_if_noexcept pair swap',
  variant: 'get_if holds_alternative monostate variant visit',
  vector: 'vector',
};

/** Names that several headers declare; any of these headers is enough. */
const SHARED = {
  abs: ['cmath', 'cstdlib'],
  begin: ['array', 'iterator', 'span', 'string', 'vector'],
  cbegin: ['array', 'iterator', 'span', 'string', 'vector'],
  cend: ['array', 'iterator', 'span', 'string', 'vector'],
  data: ['array', 'iterator', 'span', 'string', 'vector'],
  end: ['array', 'iterator', 'span', 'string', 'vector'],
  get: ['array', 'tuple', 'utility', 'variant'],
  erase: ['string', 'vector'],
  erase_if: ['deque', 'map', 'set', 'string', 'vector'],
  ios: ['fstream', 'ios', 'iostream'],
  size: ['array', 'iterator', 'span', 'string', 'vector'],
  ssize: ['array', 'iterator', 'span', 'string', 'vector'],
  streamsize: ['fstream', 'ios', 'iostream'],
  unitbuf: ['ios', 'iostream'],
};

/** Names that are used without std::. */
const GLOBAL = {
  cassert: /\bassert\(/,
  cerrno: /\b(errno|E[A-Z]{4,})\b/,
  cfloat: /\b(DBL|FLT)_[A-Z]+\b/,
  cmath: /\b(NAN|INFINITY)\b/,
  cstddef: /\b(std::)?(size_t|ptrdiff_t)\b/,
  cstdint: /\b(std::)?(u?int(8|16|32|64|ptr|max)_t|U?INT(8|16|32|64)_(MAX|MIN))\b/,
  cstdio: /\b(std(out|err)|FILE)\b/,
  cstdlib: /\bEXIT_(SUCCESS|FAILURE)\b/,
  new: /\boperator (new|delete)\b|::new \(/,
};

const headersOf = new Map(Object.entries(SHARED));
for (const [header, names] of Object.entries(NAMES)) for (const name of names.split(' ')) headersOf.set(name, [header]);

const STANDARD = new Set([...Object.keys(NAMES), ...Object.keys(GLOBAL), 'ios']);

/** The code without comments and string literals; lines keep their numbers. */
export const codeOf = (text) => text.replace(/"(?:[^"\\\n]|\\.)*"|\/\/[^\n]*|\/\*[^]*?\*\//g, (found) => found.replace(/[^\n]/g, ' '));

/** The missing and superfluous headers of a file: [header or null, sentence]. */
export function complaintsOf(text) {
  // <stddef.h>, in a header for C, counts as <cstddef>.
  const included = [...text.matchAll(/^#include <([^>]+)>/gm)].map(([, header]) => header.replace(/^(std\w+)\.h$/, 'c$1'));
  const code = codeOf(text.replace(/^#include.*$/gm, ''));
  const used = new Set();
  const complaints = new Map();
  const need = (headers, name) => {
    const there = headers.filter((header) => included.includes(header));
    for (const header of there) used.add(header);
    if (!there.length) complaints.set(headers[0], `<${headers[0]}> for ${name}`);
  };
  for (const [, name] of code.matchAll(/\bstd::((?:ranges::)?[a-z_0-9]+)/g)) {
    if (/^(u?int.*_t|size_t|ptrdiff_t)$/.test(name)) continue; // GLOBAL
    const headers = headersOf.get(name);
    if (headers) need(headers, `std::${name}`);
    else complaints.set(`std::${name}`, `std::${name} is in no list of tests/native/includes.test.mjs`);
  }
  for (const [header, pattern] of Object.entries(GLOBAL)) {
    const found = pattern.exec(code);
    if (found) need([header], found[0]);
  }
  const extra = included.filter((header) => STANDARD.has(header) && !used.has(header));
  return [...complaints, ...extra.map((header) => [null, `<${header}> is not used`])];
}

export function sourceFiles() {
  return ['src', 'native', 'tests', 'bindings'].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true })
      .filter((name) => /\.(cc|h|cpp)$/.test(name) && !name.includes('node_modules'))
      .map((name) => join(folder, name)),
  );
}

test('every file includes the standard headers that it uses', () => {
  const files = sourceFiles();
  assert.ok(files.length > 100);
  const complaints = files.flatMap((file) => complaintsOf(readFileSync(join(root, file), 'utf8')).map(([, sentence]) => `${file}: ${sentence}`));
  assert.deepEqual(complaints, []);
});

test('a missing header, an extra one and an unknown name are detected', () => {
  const text = '#include <map>\n#include <vector>\n// std::set\nstd::vector<int> v; std::sort(v.begin(), v.end()); std::flood();';
  assert.deepEqual(
    complaintsOf(text).map(([, sentence]) => sentence),
    ['<algorithm> for std::sort', 'std::flood is in no list of tests/native/includes.test.mjs', '<map> is not used'],
  );
});

// Of Embind's JavaScript, what functions of numbers need: embind.cpp has no others. The linker takes it in place of
// Emscripten's own, which has every type that C++ can bind: 10 of 14 kB of the glue, minified, or 3.7 kB gzipped.

addToLibrary({
  // The types of C++ whose numbers have no sign, by address. They may be told after the functions that return them.
  $unsignedTypes: 'new Set()',

  _embind_register_integer__deps: ['$unsignedTypes'],
  _embind_register_integer: (type, name, size, least, most) => {
    if (least === 0) unsignedTypes.add(type);
  },

  // The arguments need no conversion: WebAssembly takes a number modulo 2^32.
  _embind_register_function__deps: ['$unsignedTypes', '$readLatin1String', '$wasmTable'],
  _embind_register_function: (name, count, types, signature, invoker, target, isAsync, isNotNull) => {
    const result = HEAPU32[types >>> 2];
    const call = wasmTable.get(invoker);
    // "allocate(uint32_t)" is published as "allocate". No function has more parameters; see guard.ts.
    Module[readLatin1String(name).split('(', 1)[0]] = (a, b, c) => {
      const value = call(target, a, b, c);
      return unsignedTypes.has(result) ? value >>> 0 : value;
    };
  },

  // Of no use, but Embind's C++ registers all types that it knows. The linker wants the parameters.
  _embind_register_void__deps: [],
  _embind_register_void: (type, name) => {},
  _embind_register_bool__deps: [],
  _embind_register_bool: (type, name, yes, no) => {},
  _embind_register_bigint__deps: [],
  _embind_register_bigint: (type, name, size, least, most) => {},
  _embind_register_float__deps: [],
  _embind_register_float: (type, name, size) => {},
  _embind_register_std_string__deps: [],
  _embind_register_std_string: (type, name) => {},
  _embind_register_std_wstring__deps: [],
  _embind_register_std_wstring: (type, size, name) => {},
  _embind_register_emval__deps: [],
  _embind_register_emval: (type) => {},
  _embind_register_memory_view__deps: [],
  _embind_register_memory_view: (type, index, name) => {},
});

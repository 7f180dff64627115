// A section of the module says what it is. loader.ts reads it before the module runs. A file by
// itself, which is compiled for each module; Embind's headers take 3 s.
__asm__(
    ".section .custom_section.multihead,\"\",@\n"
    ".ascii \"" MULTIHEAD_VERSION " wire " MULTIHEAD_WIRE_VERSION " " MULTIHEAD_WASM_BUILD "\"");

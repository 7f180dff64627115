// Platform types for the package's declarations, so that a project compiles without the DOM library and Node's types. A
// type that the project lacks becomes never.

/** The type of the instances of a global class. */
type InstanceOf<Name extends string> = typeof globalThis extends {
  readonly [name in Name]: { readonly prototype: infer Instance };
}
  ? Instance
  : never;

export type PlatformAbortSignal = InstanceOf<'AbortSignal'>;
export type PlatformBlob = InstanceOf<'Blob'>;
export type PlatformFloat16Array = InstanceOf<'Float16Array'>;
export type PlatformGPUAdapter = InstanceOf<'GPUAdapter'>;
export type PlatformGPUBuffer = InstanceOf<'GPUBuffer'>;
export type PlatformGPUDevice = InstanceOf<'GPUDevice'>;
export type PlatformResponse = InstanceOf<'Response'>;
export type PlatformURL = InstanceOf<'URL'>;
/** Falls back to object if the project lacks the type, because libraries also declare Module without members. */
export type PlatformModule = typeof globalThis extends {
  readonly WebAssembly: { readonly Module: { readonly prototype: infer Module } };
}
  ? Module
  : object;

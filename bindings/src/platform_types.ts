// Types of the platform for the package's declarations, which a project without the DOM library and
// without Node's types can use: a type that such a project lacks is never.

/** The type of the instances of a global class. */
type InstanceOf<Name extends string> = typeof globalThis extends {
  readonly [name in Name]: { readonly prototype: infer Instance };
}
  ? Instance
  : never;

export type PlatformAbortSignal = InstanceOf<'AbortSignal'>;
export type PlatformFloat16Array = InstanceOf<'Float16Array'>;
export type PlatformResponse = InstanceOf<'Response'>;
export type PlatformURL = InstanceOf<'URL'>;
/** Where there is no such type, an object: libraries declare modules without members too. */
export type PlatformModule = typeof globalThis extends {
  readonly WebAssembly: { readonly Module: { readonly prototype: infer Module } };
}
  ? Module
  : object;

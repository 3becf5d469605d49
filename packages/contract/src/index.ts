export * from './openapi.ts';
export * from './rules/index.ts';
export * from './runner/hello.ts';
export * from './runner/limits.ts';
export * from './runner/sandbox.ts';
export * from './runner/source.ts';
export * from './runner/usage.ts';
export * from './wire/index.ts';

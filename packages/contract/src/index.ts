export * from './openapi.ts';
export * from './rules/index.ts';
export * from './runner-link.ts';
export * from './wire/index.ts';

/**
 * Resolution and validation of requests beyond their schemas, by what they are about: HTTP, the network, resources. May use
 * Node APIs.
 */
export * from './errors.ts';
export * from './fair-share.ts';
export * from './http/describe-schema.ts';
export * from './http/messages.ts';
export * from './http/paging.ts';
export * from './http/validation.ts';
export * from './ids.ts';
export * from './network/egress.ts';
export * from './resources/function.ts';
export * from './resources/image-reference.ts';
export * from './resources/image.ts';
export * from './resources/names.ts';
export * from './resources/object-store.ts';
export * from './resources/sandbox.ts';
export * from './resources/secret.ts';
export * from './resources/volume.ts';

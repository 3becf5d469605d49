/** The wire protocol of the compatibility facade, below `COMPAT_PREFIX`. */
export * from './limits.ts';
export * from './operations.ts';
export * from './sandbox.ts';
export * from './snapshot.ts';

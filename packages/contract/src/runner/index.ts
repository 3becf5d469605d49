/** The protocol between control and its runners; docs/runner-protocol.md describes it. */
export * from './artifact.ts';
export * from './build.ts';
export * from './envelope.ts';
export * from './hello.ts';
export * from './link.ts';
export * from './messages.ts';
export * from './read.ts';
export * from './sandbox.ts';
export * from './snapshot.ts';
export * from './source.ts';
export * from './usage.ts';
export * from './volume.ts';

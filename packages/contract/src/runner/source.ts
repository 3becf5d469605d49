/** Where the root file system of a sandbox or an image comes from, after control has resolved names. */
import { Type, type Static } from 'typebox';

const RegistrySource = Type.Object({
  type: Type.Literal('registry'),
  /** An OCI registry reference as the user gave it. */
  ref: Type.String(),
  /** Pins the reference once it was resolved. */
  digest: Type.Optional(Type.String()),
  /** For the reference's registry. Only sent over the link and held in memory: neither side writes it to a disk. */
  credential: Type.Optional(Type.Object({ username: Type.String(), password: Type.String() })),
  /** Why control cannot send the existing credential. A pull from the registry fails with this reason. */
  no_credential: Type.Optional(Type.String()),
});

/** A built-in image of runners: `busybox`, `debian`. */
const BuiltinSource = Type.Object({ type: Type.Literal('builtin'), name: Type.String() });

export const RootSource = Type.Union([RegistrySource, BuiltinSource]);
export type RootSource = Static<typeof RootSource>;

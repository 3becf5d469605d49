/** Where the root file system of a sandbox or an image comes from, after control has resolved names. */
import { Type, type Static } from 'typebox';

const RegistrySource = Type.Object({
  type: Type.Literal('registry'),
  /** An OCI registry reference as the user gave it. */
  ref: Type.String(),
  /** Pins the reference once it was resolved. */
  digest: Type.Optional(Type.String()),
  /** For the reference's registry. It is on the link and in memory only: neither side writes it to a disk. */
  credential: Type.Optional(Type.Object({ username: Type.String(), password: Type.String() })),
  /** Why control cannot send the credential that there is. A pull that needs the registry fails with this reason. */
  no_credential: Type.Optional(Type.String()),
});

/** One of the images that a runner can make by itself: `busybox`, `debian`. */
const BuiltinSource = Type.Object({ type: Type.Literal('builtin'), name: Type.String() });

export const RootSource = Type.Union([RegistrySource, BuiltinSource]);
export type RootSource = Static<typeof RootSource>;

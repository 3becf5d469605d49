/** Where the root file system of a sandbox or an image comes from, after control has resolved names. */
import { Type, type Static } from 'typebox';
import { BOUNDS } from '../wire/platform/limits.ts';
import { RegistryKind } from '../wire/storage/secret.ts';
import { Large, text, Uuid } from '../wire/platform/fields.ts';

const RegistrySource = Type.Object({
  type: Type.Literal('registry'),
  /** An OCI registry reference as the user gave it. */
  ref: Type.String(),
  /** Pins the reference once it was resolved. */
  digest: Type.Optional(Type.String()),
  /** For the reference's registry. Only sent over the link and held in memory: neither side writes it to a disk. */
  credential: Type.Optional(
    Type.Object({
      /** Absent: `basic`. The runner exchanges an `ecr` one for a token. */
      kind: Type.Optional(RegistryKind),
      username: Type.String(),
      password: Type.String(),
    }),
  ),
  /** Why control cannot send the existing credential. A pull from the registry fails with this reason. */
  no_credential: Type.Optional(Type.String()),
  /** Whose pull it is: for a fair share of pulls, and for layers that only the project may see. Absent: the service's own. */
  project_id: Type.Optional(Uuid),
});

/** A built-in image of runners: `busybox`, `debian`. */
const BuiltinSource = Type.Object({ type: Type.Literal('builtin'), name: Type.String() });

const Digest = Type.String({ pattern: '^sha256:[0-9a-f]{64}$' });

/**
 * A Dockerfile that the runner builds in a micro-VM. Only sent to runners with the capability `DOCKERFILE_CAPABILITY`.
 * Equal project, Dockerfile and context mean the same image as long as the runner has it.
 */
const DockerfileRoot = Type.Object({
  type: Type.Literal('dockerfile'),
  /** Builds of one project share their layers; no other project sees them. */
  project_id: Uuid,
  /** The Dockerfile itself, or its path in the context. */
  dockerfile: Type.Union([
    Type.Object({ text: text(BOUNDS.dockerfileChars) }),
    Type.Object({ path: text(4096) }),
  ]),
  /** A tar archive, plain or gzip, that the runner fetches from control's internal listener. */
  context: Type.Optional(Type.Object({ digest: Digest, bytes: Large })),
  /** Prepares the result for Docker: it gets a container engine unless it has one. */
  docker: Type.Boolean(),
  /**
   * All registry credentials of the project, for base images. They never enter the build's micro-VM, and neither side
   * writes them to a disk.
   */
  credentials: Type.Array(
    Type.Object({
      host: Type.String(),
      kind: RegistryKind,
      username: Type.String(),
      password: Type.String(),
    }),
  ),
  /** Why control cannot send existing credentials. A base image of such a registry fails the build with this reason. */
  no_credentials: Type.Optional(Type.Array(Type.Object({ host: Type.String(), reason: Type.String() }))),
});

/** A root image that is known by its digest alone, such as the result of a build from a Dockerfile. */
const StoredRoot = Type.Object({ type: Type.Literal('stored'), digest: Digest });

/** The capability of runners that build Dockerfiles. */
export const DOCKERFILE_CAPABILITY = 'dockerfile-builds';

/** The capability of runners that prepare what they build for Docker. */
export const DOCKER_CAPABILITY = 'docker-engine';

export const RootSource = Type.Union([RegistrySource, BuiltinSource, DockerfileRoot, StoredRoot]);
export type RootSource = Static<typeof RootSource>;
export type DockerfileRoot = Static<typeof DockerfileRoot>;

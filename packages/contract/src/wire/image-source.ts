/**
 * The source of a root file system in requests: a string, or an object with a `type`. A string with a `/` or a `:` is a
 * registry reference; any other is the name of an image of the project.
 */
import { Type, type Static } from 'typebox';

export const RegistrySource = Type.Object({
  type: Type.Literal('registry'),
  ref: Type.String({ description: 'Registry reference, as in `node:20` or `registry.example.com/app:1.0`.' }),
});
export const NamedSource = Type.Object({
  type: Type.Literal('named'),
  name: Type.String({ description: 'Name of an image of this project.' }),
});
export const DockerfileSource = Type.Object({
  type: Type.Literal('dockerfile'),
  dockerfile: Type.String({ description: 'The text of a Dockerfile that needs no build context.' }),
  docker: Type.Optional(
    Type.Boolean({
      description: 'Prepares what is built for Docker, as `docker` of `POST /images` does. Default false.',
    }),
  ),
});
export const SnapshotSource = Type.Object({
  type: Type.Literal('snapshot'),
  name: Type.String({ description: 'Name of a snapshot of this project.' }),
});

export const ImageSource = Type.Union([RegistrySource, NamedSource, DockerfileSource, SnapshotSource]);
/** Validated. `ref` is unchanged: `parseImageReference` parses it. */
export type ImageSource = Static<typeof ImageSource>;

/** The allowed image sources, in words. */
export const IMAGE_SOURCE_FORM =
  'an image name, a registry reference (it has a "/" or a ":"), or an object ' +
  '{type: "registry", ref}, {type: "named", name}, {type: "dockerfile", dockerfile} or {type: "snapshot", name}';

/** The field `image` of a create. */
export const ImageInput = Type.Union([Type.String(), ...ImageSource.anyOf], {
  expected: IMAGE_SOURCE_FORM,
  description: 'A bare string with a `/` or a `:` is a registry reference, any other an image name.',
});

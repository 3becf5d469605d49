/** Named images of a project. */
import { Type, type Static } from 'typebox';
import { ImageInput } from './image-source.ts';
import { NextCursor, cursorKind } from './platform/paging.ts';
import { UpdatedAt } from './platform/fields.ts';

export const IMAGE_STATUSES = ['pending', 'ready', 'failed'] as const;
export const ImageStatus = Type.Enum(IMAGE_STATUSES);
export type ImageStatus = Static<typeof ImageStatus>;

const Name = Type.String({
  minLength: 1,
  description: 'Unique in the project. Posting a name again replaces its source and rebuilds it.',
});
const Region = Type.String({ description: 'Slug of a region or id of a global region.' });

/** Of the field of a request. */
const DOCKER =
  'Prepares it for Docker: the build installs `dockerd` where it is missing, and sandboxes keep it running.';

export const ImageCreateRequest = Type.Object({
  name: Name,
  source: ImageInput,
  docker: Type.Optional(Type.Boolean({ default: false, description: DOCKER })),
  region: Type.Optional(Region),
});
export type ImageCreateRequest = Static<typeof ImageCreateRequest>;

/** Values of the form field `docker`; `0`, `false`, `no`, `off` and an empty one are the opposite. */
export const FORM_TRUE = ['1', 'true', 'yes', 'on'] as const;

/** The same as a multipart form, for a Dockerfile with a build context. */
export const ImageForm = Type.Object({
  name: Name,
  context: Type.String({
    format: 'binary',
    description: 'A file: the build context, a tar archive, plain or gzip.',
  }),
  dockerfile: Type.Optional(
    Type.String({ default: 'Dockerfile', description: 'Path of the Dockerfile in the context.' }),
  ),
  docker: Type.Optional(
    Type.String({
      description: `${DOCKER} One of ${FORM_TRUE.map((one) => `\`${one}\``).join(', ')}.`,
    }),
  ),
  region: Type.Optional(Region),
});
export type ImageForm = Static<typeof ImageForm>;

export const ImageParams = Type.Object({
  id_or_name: Type.String({ description: 'Id or name of an image.' }),
});

export const ImageCreateResponse = Type.Object({
  image_id: Type.String({ format: 'uuid' }),
  job_id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  status: ImageStatus,
  region: Type.String(),
});
export type ImageCreateResponse = Static<typeof ImageCreateResponse>;

export const ImageRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  source: Type.Object(
    { type: Type.String() },
    {
      additionalProperties: true,
      description:
        'As it was posted; of a build context `{type: "dockerfile", path, context_bytes}`, and `{type: "builtin", name}` of ' +
        'a built-in image.',
    },
  ),
  manifest_name: Type.Optional(
    Type.String({
      description:
        'Digest of what sandboxes boot; once built. During a rebuild, and after one that failed, that of the build before.',
    }),
  ),
  status: ImageStatus,
  layer_count: Type.Optional(Type.Integer({ description: 'Layers of the same; once built.' })),
  bytes: Type.Optional(Type.Integer({ description: 'Size of its root file system; once known.' })),
  docker: Type.Boolean({ description: 'Whether it was posted to be prepared for Docker.' }),
  error: Type.Optional(
    Type.Union([Type.String(), Type.Null()], {
      description: 'Why the newest build failed: the reason, and the last lines of its log.',
    }),
  ),
  job_id: Type.Optional(Type.String({ format: 'uuid', description: 'Its newest build.' })),
  region: Type.Optional(Type.String({ description: 'Its home region.' })),
  created_at: Type.Optional(Type.String({ format: 'date-time', description: 'RFC 3339.' })),
  updated_at: Type.Optional(UpdatedAt),
  built_at: Type.Optional(
    Type.String({ format: 'date-time', description: 'When what sandboxes boot was built.' }),
  ),
});
export type ImageRecord = Static<typeof ImageRecord>;

export const ImageList = Type.Object({ images: Type.Array(ImageRecord), next_cursor: NextCursor });
export type ImageList = Static<typeof ImageList>;

/** Cursors of lists of images. */
export const IMAGE_CURSORS = cursorKind(2);

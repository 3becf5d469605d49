/** Named images of a project. */
import { Type, type Static } from 'typebox';
import { ImageInput } from './image-source.ts';
import { NextCursor } from './paging.ts';
import { cursorKind } from './resource.ts';

export const IMAGE_STATUSES = ['pending', 'ready', 'failed'] as const;
export const ImageStatus = Type.Enum(IMAGE_STATUSES);
export type ImageStatus = Static<typeof ImageStatus>;

export const ImageCreateRequest = Type.Object({
  name: Type.String({
    minLength: 1,
    description: 'Unique in the project. Posting a name again replaces its source and rebuilds it.',
  }),
  source: ImageInput,
  docker: Type.Optional(Type.Boolean({ default: false, description: 'Whether Docker will run inside.' })),
  region: Type.Optional(Type.String({ description: 'Slug of a region or id of a global region.' })),
});
export type ImageCreateRequest = Static<typeof ImageCreateRequest>;

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
  source: Type.Object({ type: Type.String() }, { additionalProperties: true, description: 'Its source.' }),
  manifest_name: Type.Optional(Type.String({ description: 'Digest of the result; once built.' })),
  status: ImageStatus,
  layer_count: Type.Optional(Type.Integer({ description: 'Once built.' })),
  docker: Type.Boolean(),
  error: Type.Optional(Type.Union([Type.String(), Type.Null()], { description: 'Why the build failed.' })),
});
export type ImageRecord = Static<typeof ImageRecord>;

export const ImageList = Type.Object({ images: Type.Array(ImageRecord), next_cursor: NextCursor });
export type ImageList = Static<typeof ImageList>;

/** Cursors of lists of images. */
export const IMAGE_CURSORS = cursorKind(2);

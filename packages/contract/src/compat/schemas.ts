/** The schemas of the facade under their names in its OpenAPI document, and the form of its errors. */
import { Type } from 'typebox';
import { ErrorBody } from '../wire/platform/errors.ts';
import {
  CompatBuildInfo,
  CompatBuildInfoRecord,
  CompatPreviewUrl,
  CompatSandbox,
  CompatSandboxCreate,
  CompatSandboxItem,
  CompatSandboxList,
  CompatSignedPreviewUrl,
  CompatUrl,
} from './sandbox.ts';
import { CompatSnapshot, CompatSnapshotCreate, CompatSnapshotList } from './snapshot.ts';

const { code, ...fields } = ErrorBody.properties;

export const CompatError = Type.Object({
  ...fields,
  statusCode: Type.Integer(),
  message: Type.String({ description: 'The same sentence as `error`.' }),
  code: Type.String({ description: 'The name of the status, as in `NOT_FOUND`.' }),
  error_code: code,
});

export const compatSchemas = {
  CompatError,
  CompatBuildInfo,
  CompatBuildInfoRecord,
  CompatPreviewUrl,
  CompatSandbox,
  CompatSandboxCreate,
  CompatSandboxItem,
  CompatSandboxList,
  CompatSignedPreviewUrl,
  CompatUrl,
  CompatSnapshot,
  CompatSnapshotCreate,
  CompatSnapshotList,
} as const;

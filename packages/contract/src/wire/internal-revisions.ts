/** How runners ask what has changed of their sandboxes: the values of secrets, the credentials of object stores. */
import { Type } from 'typebox';
import { Uuid } from './platform/fields.ts';

export const Revision = Type.String({ minLength: 1, maxLength: 64 });

/** Most sandboxes of one request. */
export const RUNNER_REVISIONS_MAX = 1_000;

export const RunnerRevisions = Type.Object({
  sandboxes: Type.Array(
    Type.Object({
      id: Uuid,
      /** What the runner has; absent for nothing. */
      revision: Type.Optional(Revision),
    }),
    { maxItems: RUNNER_REVISIONS_MAX },
  ),
});

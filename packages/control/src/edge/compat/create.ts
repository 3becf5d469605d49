/** Creates of the facade. */
import { checkDisplayName, conflict, newUuid, quote, type CompatSandboxCreate } from '@releap/contract';
import type { Principal } from '../../platform/auth/authenticator.ts';
import { RANDOM } from '../../platform/idempotency/id-generator.ts';
import { createForTenant, type CreateContext } from '../../compute/sandboxes/create.ts';
import { checkLabels, refuseUnsupported, toLease, toRequest, toUser } from './create-request.ts';
import { forgetSandbox, reserveSandbox } from './sandbox-rows.ts';
import { resolveSource } from './source.ts';

export interface CompatCreateContext extends CreateContext {
  /** For creates without a snapshot or an image. */
  defaultSnapshot: string | undefined;
}

/**
 * @param id of the new sandbox
 * @throws 400, 402, 404, 409 (the name is taken), 429, 501
 */
export async function createSandbox(
  context: CompatCreateContext,
  principal: Principal,
  body: CompatSandboxCreate,
  id: string,
): Promise<void> {
  refuseUnsupported(body);
  const labels = checkLabels(body.labels ?? {});
  const name = checkDisplayName(body.name);
  const { pool } = context.database;
  const { projectId } = principal;
  const source = await resolveSource(context.database, projectId, body, context.defaultSnapshot);
  const request = toRequest(body, name, source);
  const { snapshot } = source;
  const { autoStopInterval, autoArchiveInterval, autoDeleteInterval } = body;
  const intervals = { autoStopInterval, autoArchiveInterval, autoDeleteInterval };
  if (!(await reserveSandbox(pool, { id, projectId, name, snapshot, labels, ...intervals })))
    throw conflict(
      `a sandbox with the name ${quote(name)} already exists: choose another name, or delete that one`,
      'name_exists',
    );
  let first: string | undefined = id;
  const ids = {
    ...RANDOM,
    uuid() {
      const next = first ?? newUuid();
      first = undefined;
      return next;
    },
  };
  try {
    await createForTenant(context, principal, request, ids, { lease: toLease(body), user: toUser(body) });
  } catch (error) {
    await forgetSandbox(pool, id).catch(() => undefined);
    throw error;
  }
}

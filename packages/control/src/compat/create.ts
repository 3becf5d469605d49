/** Creates of the facade: dedicated, at the full price, not persistent. */
import {
  badRequest,
  COMPAT_DEFAULTS,
  COMPAT_LIMITS,
  conflict,
  newUuid,
  quote,
  type CompatSandboxCreate,
  type SandboxCreateRequest,
} from '@releap/contract';
import type { Principal } from '../auth/authenticator.ts';
import { RANDOM } from '../idempotency/id-generator.ts';
import { createForTenant, type CreateContext } from '../sandboxes/create.ts';
import { notSupported } from './errors.ts';
import { forgetSandbox, reserveSandbox } from './sandbox-rows.ts';
import { resolveSource, type CompatSource } from './source.ts';

export interface CompatCreateContext extends CreateContext {
  /** Of creates that name none. */
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
  const { pool } = context.database;
  const { projectId } = principal;
  const source = await resolveSource(context.database, projectId, body, context.defaultSnapshot);
  const request = toRequest(body, source);
  const name = body.name ?? null;
  if (!(await reserveSandbox(pool, { id, projectId, name, snapshot: source.snapshot, labels })))
    throw conflict(
      `a sandbox with the name ${quote(name)} already exists: choose another name, or delete that one`,
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
    await createForTenant(context, principal, request, ids);
  } catch (error) {
    await forgetSandbox(pool, id).catch(() => undefined);
    throw error;
  }
}

/** The same create in terms of the API. */
function toRequest(body: CompatSandboxCreate, { image, size, hasDisk }: CompatSource): SandboxCreateRequest {
  // Sizes of 0 stand for the default.
  const cpu = body.cpu || size.cpu || COMPAT_DEFAULTS.cpu;
  const memory = body.memory || size.memory || COMPAT_DEFAULTS.memoryGib;
  const disk = body.disk || size.disk || (hasDisk ? undefined : COMPAT_DEFAULTS.diskGib);
  return {
    image,
    ...(body.name === undefined ? {} : { name: body.name }),
    mode: 'dedicated',
    cpu,
    mem_mib: Math.ceil(memory * 1024),
    ...(disk === undefined ? {} : { scratch_mib: Math.ceil(disk * 1024) }),
    ...(body.gpu ? { gpu_host: body.gpu } : {}),
    ...(body.env === undefined ? {} : { env: body.env }),
    persistent: false,
    spot: false,
    ...egress(body),
    ...(toRegion(body.target) === undefined ? {} : { region: toRegion(body.target) as string }),
  };
}

/** The region of a target; undefined for the default one. */
export function toRegion(target: string | undefined): string | undefined {
  return target === undefined || target === '' || target === 'local' ? undefined : target;
}

/** Lists are separated by commas. Both together allow what either has. */
function egress(body: CompatSandboxCreate): Pick<SandboxCreateRequest, 'egress_policy'> {
  const entries = [body.networkAllowList, body.domainAllowList].flatMap((list) =>
    (list ?? '')
      .split(',')
      .map((entry) => entry.trim())
      .filter((entry) => entry !== ''),
  );
  if (body.networkBlockAll === true) return { egress_policy: { enabled: true, allow: [] } };
  return entries.length === 0 ? {} : { egress_policy: { enabled: true, allow: entries } };
}

function refuseUnsupported(body: CompatSandboxCreate): void {
  const used: [string, boolean][] = [
    ['volumes', (body.volumes ?? []).length > 0],
    ['gpuType', (body.gpuType ?? []).length > 0],
    ['linkedSandbox', Boolean(body.linkedSandbox)],
  ];
  for (const [field, isUsed] of used)
    if (isUsed) throw notSupported(`sandbox create with ${field}`, ': leave it out');
}

/** Labels are returned and filter lists; nothing else depends on them. */
function checkLabels(labels: Record<string, string>): Record<string, string> {
  const bytes = Buffer.byteLength(JSON.stringify(labels));
  if (bytes > COMPAT_LIMITS.labelsBytes)
    throw badRequest(
      `labels have ${bytes} bytes as JSON; at most ${COMPAT_LIMITS.labelsBytes} (64 KiB) are allowed`,
    );
  return labels;
}

/** A create of the facade in terms of the API. Errors name the fields of the protocol, in its units. */
import {
  badRequest,
  BOUNDS,
  COMPAT_DEFAULTS,
  COMPAT_LIMITS,
  parseEgressEntry,
  quote,
  type CompatSandboxCreate,
  type SandboxCreateRequest,
} from '@releap/contract';
import type { NewLease } from '../../compute/sandboxes/leases.ts';
import { notSupported } from './errors.ts';
import type { CompatSource } from './source.ts';

/** @throws 501 for fields that the service does not have, where ignoring them would be a surprise */
export function refuseUnsupported(body: CompatSandboxCreate): void {
  const used: [field: string, isUsed: boolean, hint: string][] = [
    ['volumes', (body.volumes ?? []).length > 0, ''],
    ['gpuType', (body.gpuType ?? []).length > 0, ''],
    ['linkedSandbox', Boolean(body.linkedSandbox), ''],
    // Of newer versions of the protocol.
    ['autoPauseInterval', Boolean(body.autoPauseInterval), ''],
    ['kvm', body.kvm === true, ''],
    ['spot', body.spot === true, ''],
    ['secrets', (body.secrets ?? []).length > 0, ': secrets are attached with POST /vms'],
    ['outboundProxyUrl', Boolean(body.outboundProxyUrl), ''],
    ['otelEndpointOverride', Boolean(body.otelEndpointOverride), ''],
  ];
  for (const [field, isUsed, hint] of used)
    if (isUsed) throw notSupported(`sandbox create with ${field}`, `: leave it out${hint}`);
}

/** Labels are returned and filter lists; nothing else depends on them. @throws 400 */
export function checkLabels(labels: Record<string, string>): Record<string, string> {
  const bytes = Buffer.byteLength(JSON.stringify(labels));
  if (bytes > COMPAT_LIMITS.labelsBytes)
    throw badRequest(
      `labels have ${bytes} bytes as JSON; at most ${COMPAT_LIMITS.labelsBytes} (64 KiB) are allowed`,
    );
  return labels;
}

/**
 * Dedicated, at the full price, not persistent.
 * @param name null for one that the service chooses
 * @throws 400
 */
export function toRequest(
  body: CompatSandboxCreate,
  name: string | null,
  { image, snapshot, size, diskMib }: CompatSource,
): SandboxCreateRequest {
  // Sizes of 0 stand for the default.
  const cpu = body.cpu || size.cpu || COMPAT_DEFAULTS.cpu;
  const memory = body.memory || size.memory || COMPAT_DEFAULTS.memoryGib;
  const disk = body.disk || size.disk || COMPAT_DEFAULTS.diskGib;
  if (diskMib !== null && body.disk && toMib(body.disk) !== diskMib)
    throw badRequest(
      `disk is ${body.disk} GiB, but that of snapshot ${quote(snapshot)} is ${diskMib / 1024} GiB: leave it out, or send the same value`,
    );
  const region = toRegion(body.target);
  return {
    image,
    ...(name === null ? {} : { name }),
    mode: 'dedicated',
    cpu,
    mem_mib: toMib(memory),
    ...(diskMib === null ? { scratch_mib: toMib(disk) } : {}),
    ...(body.gpu ? { gpu_host: body.gpu } : {}),
    ...(body.env === undefined ? {} : { env: body.env }),
    persistent: false,
    spot: false,
    ...egress(body),
    ...(region === undefined ? {} : { region }),
  };
}

/** A name or a number, as the guest looks it up; undefined for the user of the image. @throws 400 */
export function toUser({ user }: CompatSandboxCreate): string | undefined {
  if (!user) return undefined;
  if (!/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$/.test(user))
    throw badRequest(
      `user ${quote(user)} must be the name or the number of a user of the image: letters, digits, _, . and -, at most 64`,
    );
  return user;
}

/** Undefined for a sandbox that no time ends. In the protocol 0 is never. */
export function toLease({ autoStopInterval, ttlMinutes }: CompatSandboxCreate): NewLease | undefined {
  if (!autoStopInterval && !ttlMinutes) return undefined;
  return {
    ...(ttlMinutes ? { seconds: ttlMinutes * 60 } : {}),
    ...(autoStopInterval ? { idleSeconds: autoStopInterval * 60 } : {}),
  };
}

const toMib = (gib: number): number => Math.ceil(gib * 1024);

/** The region of a target; undefined for the default one. */
export function toRegion(target: string | undefined): string | undefined {
  return target === undefined || target === '' || target === 'local' ? undefined : target;
}

/** Lists are separated by commas. Both together allow what either has. */
function egress(body: CompatSandboxCreate): Pick<SandboxCreateRequest, 'egress_policy'> {
  const allow = [
    ...entriesOf('networkAllowList', body.networkAllowList),
    ...entriesOf('domainAllowList', body.domainAllowList),
  ];
  if (allow.length > BOUNDS.egressEntries)
    throw badRequest(
      `networkAllowList and domainAllowList have ${allow.length} entries; at most ${BOUNDS.egressEntries} are allowed`,
    );
  if (body.networkBlockAll === true) return { egress_policy: { enabled: true, allow: [] } };
  return allow.length === 0 ? {} : { egress_policy: { enabled: true, allow } };
}

function entriesOf(field: string, list = ''): string[] {
  const entries = list.split(',').map((entry) => entry.trim());
  const given = entries.filter((entry) => entry !== '');
  for (const [index, entry] of given.entries()) parseEgressEntry(entry, `${field}[${index}]`);
  return given;
}

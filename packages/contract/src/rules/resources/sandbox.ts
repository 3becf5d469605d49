/**
 * Resolves the creates of sandboxes and snapshots: defaults, clamps, caps and every rule that needs no lookup. Pure. The
 * control plane looks up the rest (names of images, regions, credits).
 */
import type { RunnerFacts } from '../../runner/hello.ts';
import type { SandboxCreateRequest } from '../../wire/compute/sandbox-create.ts';
import type { CpuArch, PortProto, SandboxMode } from '../../wire/compute/sandbox-record.ts';
import {
  BOUNDS,
  DEFAULTS,
  LIMITS,
  PLATFORM_LIMITS,
  type PlatformLimits,
  RESERVED_MOUNT_PATHS,
} from '../../wire/platform/limits.ts';
import type { ImageSource } from '../../wire/storage/image.ts';
import { badRequest, notFound, quote } from '../errors.ts';
import { formatEgressEntry, parseEgressEntry } from '../network/egress.ts';
import { parseImageSource } from './image.ts';
import { checkEnv, isEnvName } from './names.ts';

export interface Resources {
  mode: SandboxMode;
  /** Guaranteed cores: whole for dedicated, at least 0.125 for burstable. */
  cpu: number;
  /** Virtual CPUs the guest sees. */
  vcpus: number;
  mem_mib: number;
  scratch_mib: number;
}

/** A create after every rule that needs no lookup. Absent lists are empty, absent choices are null. */
export interface ResolvedSandbox extends Resources {
  /** Null: generate one (`newSandboxName`). */
  name: string | null;
  image: ImageSource;
  gpu_host: number;
  docker_data_mib: number | null;
  ports: { vm_port: number; proto: PortProto }[];
  volumes: { volume: string; mount_path: string; subpath: string | null }[];
  object_store_mounts: { object_store: string; mount_path: string; read_only: boolean | null }[];
  secrets: string[];
  env: Record<string, string>;
  persistent: boolean;
  spot: boolean;
  egress_policy: { enabled: boolean; allow: string[] } | null;
  /** Null: the project's default, then the organization's, then the platform's. */
  region: string | null;
  /** Null: implied by `cpu_type`, else `DEFAULTS.cpuArch`. */
  cpu_arch: CpuArch | null;
  cpu_type: string | null;
  network_class: string | null;
  disk_class: string | null;
}

/** `body` has passed `SandboxCreateRequest`. Throws a 400 for the first violated rule. */
export function resolveSandboxCreate(
  body: SandboxCreateRequest,
  platform: PlatformLimits = PLATFORM_LIMITS,
): ResolvedSandbox {
  const image = parseImageSource(body.image);
  const resources = resolveResources(body, platform);
  const gpus = body.gpu_host ?? 0;
  const networkClass = body.network_class || null;
  const diskClass = body.disk_class || null;
  if (gpus > 0 && networkClass !== null) throw badRequest('network_class cannot be combined with gpu_host');
  if (gpus > 0 && diskClass !== null) throw badRequest('disk_class cannot be combined with gpu_host');

  const volumes = (body.volumes ?? []).map((mount, index) => ({
    volume: mount.volume,
    mount_path: checkMountPath(mount.mount_path, `volumes[${index}].mount_path`),
    subpath: checkSubpath(mount.subpath, `volumes[${index}].subpath`),
  }));
  const stores = (body.object_store_mounts ?? []).map((mount, index) => ({
    object_store: mount.object_store,
    mount_path: checkMountPath(mount.mount_path, `object_store_mounts[${index}].mount_path`),
    read_only: mount.read_only ?? null,
  }));
  const secrets = distinctSecrets(body.secrets ?? []);
  const env = checkEnv(body.env ?? {});
  checkSecretsNotInEnv(secrets, env);
  const paths = [...volumes, ...stores].map((mount) => mount.mount_path);
  checkMountPathsDiffer(paths);
  checkMountPathsApart(paths);

  return {
    ...resources,
    name: checkDisplayName(body.name),
    image,
    gpu_host: gpus,
    docker_data_mib: body.docker_data_mib ? Math.max(body.docker_data_mib, platform.dockerDataMibMin) : null,
    ports: distinctPorts(body.ports ?? []),
    volumes,
    object_store_mounts: stores,
    secrets,
    env,
    persistent: body.persistent ?? false,
    spot: body.spot ?? false,
    egress_policy: resolveEgress(body.egress_policy),
    region: body.region || null,
    cpu_arch: body.cpu_arch ?? null,
    cpu_type: body.cpu_type || null,
    network_class: networkClass,
    disk_class: diskClass,
  };
}

/**
 * The guarantees. `cpu` wins over `vcpus`; the guest sees `cpu` rounded up. With neither, a burstable sandbox
 * is guaranteed 0.125 cores and sees 2, and a dedicated one has 2. Explicit values below a platform minimum
 * are raised to it, values above a cap are refused, defaults are not changed.
 */
export function resolveResources(
  body: Pick<SandboxCreateRequest, 'mode' | 'cpu' | 'vcpus' | 'mem_mib' | 'scratch_mib'>,
  platform: PlatformLimits = PLATFORM_LIMITS,
): Resources {
  const mode = body.mode ?? DEFAULTS.mode;
  const { cpu, vcpus } = mode === 'dedicated' ? dedicatedCpu(body, platform) : burstableCpu(body, platform);
  const mem = body.mem_mib === undefined ? DEFAULTS.memMib : Math.max(body.mem_mib, platform.memMibMin);
  const scratch =
    body.scratch_mib === undefined ? DEFAULTS.scratchMib : Math.max(body.scratch_mib, platform.scratchMibMin);
  if (mode === 'burstable') {
    refuseOver('mem_mib', mem, platform.burstMemMib, 'MiB');
    refuseOver('scratch_mib', scratch, platform.burstScratchMib, 'MiB');
  }
  return { mode, cpu, vcpus, mem_mib: mem, scratch_mib: scratch };
}

type CpuRequest = Pick<SandboxCreateRequest, 'cpu' | 'vcpus'>;

function burstableCpu(body: CpuRequest, platform: PlatformLimits): { cpu: number; vcpus: number } {
  const asked = askedCpu(body);
  if (asked === undefined) return { cpu: DEFAULTS.burstableCpu, vcpus: DEFAULTS.vcpus };
  const cpu = Math.max(asked, LIMITS.burstableCpuMin);
  refuseOver(body.cpu === undefined ? 'vcpus' : 'cpu', cpu, platform.burstCpuMax, 'cores');
  return { cpu, vcpus: Math.ceil(cpu) };
}

function dedicatedCpu(body: CpuRequest, platform: PlatformLimits): { cpu: number; vcpus: number } {
  const cpu = Math.max(Math.ceil(askedCpu(body) ?? DEFAULTS.vcpus), LIMITS.dedicatedCpuMin);
  if (cpu > platform.dedicatedCpuMax)
    throw badRequest(
      `${body.cpu === undefined ? 'vcpus' : 'cpu'} asks for ${cpu} cores; a dedicated sandbox has at most ${platform.dedicatedCpuMax}`,
    );
  return { cpu, vcpus: cpu };
}

function askedCpu(body: CpuRequest): number | undefined {
  if (body.cpu !== undefined && !(body.cpu > 0 && Number.isFinite(body.cpu)))
    throw badRequest(`cpu must be a number greater than 0, but was ${quote(body.cpu)}`);
  return body.cpu ?? body.vcpus;
}

function refuseOver(field: string, value: number, cap: number, unit: string): void {
  if (value > cap)
    throw badRequest(`${field} asks for ${value} ${unit}; a burstable sandbox is guaranteed at most ${cap}`);
}

/** Null for a name that is absent or empty. Throws a 400 on control characters. */
export function checkDisplayName(name: string | undefined): string | null {
  const text = name?.trim() ?? '';
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f-\u009f]/.test(text))
    throw badRequest(`name must not have control characters, but was ${quote(text)}`);
  return text === '' ? null : text;
}

/** Removes duplicate ports. */
function distinctPorts(ports: NonNullable<SandboxCreateRequest['ports']>): ResolvedSandbox['ports'] {
  const found = new Map<string, { vm_port: number; proto: PortProto }>();
  for (const { vm_port, proto = DEFAULTS.portProto } of ports)
    found.set(`${vm_port}/${proto}`, { vm_port, proto });
  return [...found.values()];
}

function distinctSecrets(names: string[]): string[] {
  for (const name of names) {
    if (!isEnvName(name) || name.length > LIMITS.secretNameChars)
      throw badRequest(
        `secrets: ${quote(name)} is not a valid secret name: names match [A-Za-z_][A-Za-z0-9_]*`,
      );
  }
  return [...new Set(names)];
}

/** One variable cannot have both values. */
function checkSecretsNotInEnv(secrets: readonly string[], env: Readonly<Record<string, string>>): void {
  const both = secrets.find((name) => Object.hasOwn(env, name));
  if (both !== undefined)
    throw badRequest(
      `env.${both} cannot be set, because secrets attaches a secret of the same name: leave one of the two out`,
    );
}

function resolveEgress(policy: SandboxCreateRequest['egress_policy']): ResolvedSandbox['egress_policy'] {
  if (policy === undefined) return null;
  const entries = (policy.allow ?? []).map((text, index) =>
    formatEgressEntry(parseEgressEntry(text, `egress_policy.allow[${index}]`)),
  );
  return { enabled: policy.enabled, allow: [...new Set(entries)] };
}

/**
 * The path without doubled or final slashes. Throws a 400 naming `field` on a path that is relative, contains `..`,
 * or would hide what the guest needs (a reserved path or anything below one; of `/` only the root itself).
 */
export function checkMountPath(path: string, field: string): string {
  const refuse = (why: string): Error => badRequest(`${field} ${quote(path)} is not usable: ${why}`);
  if (!path.startsWith('/')) throw refuse('it must be absolute');
  if (path.length > BOUNDS.mountPathChars)
    throw refuse(`it has more than ${BOUNDS.mountPathChars} characters`);
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f]/.test(path)) throw refuse('it must not have control characters');
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..')) throw refuse('it must not have ..');
  const clean = `/${parts.join('/')}`;
  for (const reserved of RESERVED_MOUNT_PATHS) {
    if (clean === reserved || (reserved !== '/' && clean.startsWith(`${reserved}/`)))
      throw refuse(`${reserved} is reserved`);
  }
  return clean;
}

/** Throws a 400 when two mounts have the same path. */
export function checkMountPathsDiffer(paths: readonly string[]): void {
  const seen = new Set<string>();
  for (const path of paths) {
    if (seen.has(path))
      throw badRequest(`mount_path ${quote(path)} is used twice: give each mount another path`);
    seen.add(path);
  }
}

/** Throws a 400 when one path is below another: each mount is served by another process, which may not respond. */
export function checkMountPathsApart(paths: readonly string[]): void {
  for (const path of paths) {
    const inside = paths.find((other) => other.startsWith(`${path}/`));
    if (inside !== undefined)
      throw badRequest(
        `mount_path ${quote(inside)} is below mount_path ${quote(path)}, another mount: choose another path`,
      );
  }
}

/** Longest name of one folder, in bytes: NAME_MAX of Linux. */
const NAME_BYTES = 255;

/**
 * The path below the root of a volume, without doubled, leading or final slashes; null for the whole volume. Throws a 400 naming
 * `field`. Whether a link in the volume leads elsewhere is checked by the host that mounts it.
 */
export function checkSubpath(path: string | undefined, field: string): string | null {
  const refuse = (why: string): Error => badRequest(`${field} ${quote(path)} is not usable: ${why}`);
  const parts = (path ?? '').split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..')) throw refuse('it must not have ..');
  const clean = parts.join('/');
  if (clean.length > BOUNDS.mountPathChars)
    throw refuse(`it has more than ${BOUNDS.mountPathChars} characters`);
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f]/.test(clean) || !clean.isWellFormed())
    throw refuse('it must not have control characters');
  if (parts.some((part) => Buffer.byteLength(part) > NAME_BYTES))
    throw refuse(`a name in it has more than ${NAME_BYTES} bytes`);
  return parts.length === 0 ? null : clean;
}

/** Throws a 400 on a name with invisible characters. */
export function checkSnapshotName(name: string): string {
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f-\u009f]/.test(name) || name !== name.trim() || name === '')
    throw badRequest(
      `name must have no control characters, and no space at either end, but was ${quote(name)}`,
    );
  return name;
}

/** The same 404 for an unknown, a malformed and a deleted id, and another project's. */
export function snapshotNotFound(idOrName: string): Error {
  return notFound(`snapshot ${quote(idOrName)} not found`, 'snapshot_not_found');
}

/**
 * The CPU that a guest's memory requires, beside the VMM: the guest keeps using the features of the CPU on which it
 * booted. `cpu_marker` of a full snapshot, compared as a whole.
 */
export function cpuMarker(facts: Pick<RunnerFacts, 'cpu_model' | 'accelerator'>): string {
  return `${facts.cpu_model} ${facts.accelerator}`;
}

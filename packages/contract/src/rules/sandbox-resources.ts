/**
 * Resolves the resources of a create: defaults, clamps, caps and every rule that needs no lookup. Pure. The control
 * plane looks up the rest (names of images, regions, credits).
 */
import type { ImageSource } from '../wire/storage/image.ts';
import { DEFAULTS, LIMITS, PLATFORM_LIMITS, type PlatformLimits } from '../wire/platform/limits.ts';
import type { CpuArch, PortProto, SandboxMode } from '../wire/compute/sandbox-record.ts';
import type { SandboxCreateRequest } from '../wire/compute/sandbox-create.ts';
import { formatEgressEntry, parseEgressEntry } from './egress.ts';
import { checkEnv, isEnvName } from './environment.ts';
import { badRequest } from './errors.ts';
import { parseImageSource } from './image-source.ts';
import { checkMountPath, checkMountPathsApart, checkMountPathsDiffer, checkSubpath } from './mount-path.ts';
import { quote } from './quote.ts';

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

/** The options of `rlp run` that describe the sandbox, into the body of a create. */
import type { SandboxCreateRequest } from '@releap/contract';
import { usageError } from '../cli-error.ts';
import {
  parseEnv,
  parseMebibytes,
  parseMount,
  parseNumber,
  parsePort,
  parseVolume,
} from '../parse/values.ts';
import type { Context } from '../terminal.ts';

export interface CreateOptions {
  name?: string;
  mode?: string;
  cpu?: string;
  vcpus?: string;
  mem?: string;
  scratch?: string;
  gpus?: string;
  dockerData?: string;
  env?: string[];
  secret?: string[];
  volume?: string[];
  mount?: string[];
  port?: string[];
  allow?: string[];
  egress?: boolean;
  persistent?: boolean;
  spot?: boolean;
  region?: string;
  arch?: string;
  cpuType?: string;
  networkClass?: string;
  diskClass?: string;
}

export function createRequest(
  context: Context,
  image: SandboxCreateRequest['image'],
  options: CreateOptions,
): SandboxCreateRequest {
  const { mode, arch } = options;
  if (mode !== undefined && mode !== 'burstable' && mode !== 'dedicated')
    throw usageError(`--mode must be burstable or dedicated, but was ${JSON.stringify(mode)}`);
  if (arch !== undefined && arch !== 'amd64' && arch !== 'arm64')
    throw usageError(`--arch must be amd64 or arm64, but was ${JSON.stringify(arch)}`);
  const closed = options.egress === false || options.allow !== undefined;
  return {
    image,
    ...given('name', options.name, (text) => text),
    ...(mode === undefined ? {} : { mode }),
    ...given('cpu', options.cpu, (text) => parseNumber('--cpu', text)),
    ...given('vcpus', options.vcpus, (text) => parseNumber('--vcpus', text)),
    ...given('mem_mib', options.mem, (text) => parseMebibytes('--mem', text)),
    ...given('scratch_mib', options.scratch, (text) => parseMebibytes('--scratch', text)),
    ...given('gpu_host', options.gpus, (text) => parseNumber('--gpus', text)),
    ...given('docker_data_mib', options.dockerData, (text) => parseMebibytes('--docker-data', text)),
    ...given('env', options.env, (entries) => parseEnv(entries, context.terminal.env)),
    ...given('secrets', options.secret, (names) => names),
    ...given('volumes', options.volume, (volumes) => volumes.map(parseVolume)),
    ...given('object_store_mounts', options.mount, (mounts) => mounts.map(parseMount)),
    ...given('ports', options.port, (ports) => ports.map(parsePort)),
    ...(closed ? { egress_policy: { enabled: true, allow: options.allow ?? [] } } : {}),
    ...(options.persistent ? { persistent: true } : {}),
    ...(options.spot ? { spot: true } : {}),
    ...given('region', options.region, (text) => text),
    ...(arch === undefined ? {} : { cpu_arch: arch }),
    ...given('cpu_type', options.cpuType, (text) => text),
    ...given('network_class', options.networkClass, (text) => text),
    ...given('disk_class', options.diskClass, (text) => text),
  };
}

function given<K extends string, I, O>(
  key: K,
  value: I | undefined,
  read: (value: I) => O,
): { [P in K]?: O } {
  return value === undefined ? {} : ({ [key]: read(value) } as { [P in K]: O });
}

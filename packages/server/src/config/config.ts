import path from 'node:path';
import { type ClassKind, parseAmount } from '@releap/contract';
import { isJoinToken, parseJoinToken } from '@releap/contract/join-token';
import type { ControlLimits, OvercommitTier, RateLimits, StoreOptions } from '@releap/control';
import { price, type BillingSettings } from '@releap/control/billing';
import { parseDatabaseUrl } from '@releap/database/database-url';
import { Check } from 'typebox/value';
import { allowed } from './allowed.ts';
import { type PreviewTls, previewTlsOf } from './preview-tls.ts';
import {
  type BUILTIN_IMAGE_NAMES,
  type LOG_LEVELS,
  VARIABLES,
  type Variable,
  type VariableName,
} from './variables.ts';

/** The validated configuration. Absent values are decided when the server starts. */
export interface Config {
  home: string;
  cacheDir: string;
  host: string;
  plainHttp: boolean;
  port: number;
  gatewayPort?: number;
  ssh: { host: string; port?: number; address?: string; hostKeyFile: string };
  /** Absent: no other machine reaches the runner. */
  data?: { host: string; port: number; url?: string };
  /** Absent: hosts that accept no connections are not reached. */
  reverse?: { host: string; port?: number };
  internalHost: string;
  internalPort?: number;
  publicUrl?: string;
  trustedProxies?: readonly string[];
  toolboxUrl?: string;
  previewDomain?: string;
  previewPort?: number;
  gatewayDrainS: number;
  gatewayMetricsPort?: number;
  controlDrainS: number;
  previewEngine: 'haproxy' | 'none';
  previewUrl?: string;
  previewTls?: PreviewTls;
  controlUrl?: string;
  controlFingerprint?: string;
  databaseUrl?: string;
  databaseConnections: number;
  migrations: 'start' | 'wait';
  tokens: { operator?: string; metrics?: string; gateway?: string; join?: string };
  backupPassphrase?: string;
  keyFile: string;
  store: StoreOptions;
  hostName?: string;
  capacity: { cores?: number; memMib?: number; diskMib?: number };
  /** Slugs of the classes of hardware that this machine has, by kind. */
  classes: Partial<Record<ClassKind, string>>;
  diskLimit: { mibPerSecond?: number; iops?: number };
  guestKernel?: string;
  keepSandboxes: boolean;
  warmPool: { size: number; memoryMib?: number };
  builds: {
    parallel: number;
    cpus: number;
    memMib: number;
    diskMib: number;
    timeMs: number;
    cacheMib: number;
  };
  quarantineDays: number;
  volumeCommitMs: number;
  accelerator: 'auto' | 'kvm' | 'tcg';
  cpuModel: string;
  tenantPrivateNetworks: readonly string[];
  egressCaFile?: string;
  storePrivateHosts: readonly string[];
  images: {
    privateHosts: readonly string[];
    ecrEndpoint?: string;
    cacheMib: number;
    layerMib: number;
  };
  region: { id: string; name?: string };
  builtinImages: readonly (typeof BUILTIN_IMAGE_NAMES)[number][];
  compatSnapshot?: string;
  createQueue: number;
  createQueueShare: number;
  quotas: ControlLimits['quotas'];
  buildsPerProject: number;
  buildContextBytes: number;
  retentionDays: number;
  auditRetentionDays: number;
  invocationRetentionDays: number;
  functionWindowMaxS: number;
  volumeHistoryMs: number;
  /** `tier` and `cpu` absent: the role's default. */
  overcommit: { cpu?: number; mem: number; disk: number; tier?: OvercommitTier };
  usage: { mode: 'on' | 'off'; minuteDays: number; hourDays: number };
  billing: Pick<BillingSettings, 'mode' | 'prices' | 'overdraftLimit' | 'meterMs'>;
  rateLimits: RateLimits;
  oidc: { issuer?: string; audience: string; clientId: string; trustEmail: boolean };
  identityPort?: number;
  /** Absent: no traces. */
  traces?: { endpoint: string; ratio: number };
  log: { level: (typeof LOG_LEVELS)[number]; fileBytes: number };
}

/** All problems of the configuration. */
export class ConfigError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(`the configuration is invalid:\n${problems.map((problem) => `  ${problem}`).join('\n')}`);
    this.problems = problems;
  }
}

/** Shown in errors and logs instead of a URL's password. */
export function withoutPassword(text: string): string {
  return text.replace(/(:\/\/[^:/@\s]*):[^@\s]*@/, '$1:***@');
}

/** A value for an error message; secrets are hidden. */
function shown(name: VariableName, text: string): string {
  const variable: Variable = VARIABLES[name];
  return variable.secret === true ? '***' : withoutPassword(text).slice(0, 200);
}

/** Parses the text of an environment variable; returns the text itself if it is invalid. */
function convert(name: VariableName, text: string): unknown {
  const schema = VARIABLES[name].schema as { type?: string };
  if (schema.type === 'integer' || schema.type === 'number')
    return /^\d+(\.\d+)?$/.test(text) ? Number(text) : text;
  if (schema.type !== 'array') return text;
  if (text === 'none') return [];
  return text.split(',').map((item) => item.trim());
}

/**
 * Reads and checks the environment. An empty variable counts as absent.
 * @throws ConfigError
 */
export function loadConfig(env: Readonly<Record<string, string | undefined>>): Config {
  const problems: string[] = [];
  const values = new Map<VariableName, unknown>();
  for (const [key, variable] of Object.entries(VARIABLES)) {
    const name = key as VariableName;
    const text = env[name];
    if (text === undefined || text === '') {
      values.set(name, 'default' in variable ? variable.default : undefined);
      continue;
    }
    const value = convert(name, text);
    if (Check(variable.schema, value)) values.set(name, value);
    else problems.push(`${name}=${shown(name, text)}: must be ${allowed(variable)}`);
  }
  const joinToken = values.get('RELEAP_JOIN_TOKEN');
  if (typeof joinToken === 'string' && isJoinToken(joinToken)) {
    try {
      const { controlUrl, fingerprint, secret } = parseJoinToken(joinToken);
      values.set('RELEAP_JOIN_TOKEN', secret);
      if (values.get('RELEAP_CONTROL_URL') === undefined) {
        values.set('RELEAP_CONTROL_URL', controlUrl);
        values.set('RELEAP_CONTROL_FINGERPRINT', fingerprint);
      }
    } catch (error) {
      problems.push(`RELEAP_JOIN_TOKEN=***: ${(error as Error).message}`);
    }
  }
  const databaseProblem = problemOfDatabaseUrl(values.get('DATABASE_URL'));
  if (databaseProblem !== undefined) problems.push(databaseProblem);
  if (problems.length > 0) throw new ConfigError(problems);
  const get = (name: VariableName): unknown => values.get(name);
  const text = (name: VariableName): string | undefined => get(name) as string | undefined;
  const url = (name: VariableName): string | undefined => text(name)?.replace(/\/+$/, '');
  const home = path.resolve(text('RELEAP_HOME') ?? '');
  const previewTls = previewTlsOf(get);
  if (previewTls !== undefined && 'problems' in previewTls) throw new ConfigError(previewTls.problems);
  const config: { [Key in keyof Config]: unknown } = {
    home,
    cacheDir: path.resolve(text('RELEAP_CACHE') ?? path.join(home, 'cache')),
    host: get('RELEAP_HOST'),
    plainHttp: get('RELEAP_PLAIN_HTTP') === 1,
    port: get('RELEAP_PORT'),
    gatewayPort: get('RELEAP_GATEWAY_PORT'),
    ssh: compact({
      host: get('RELEAP_SSH_HOST') ?? get('RELEAP_HOST'),
      port: get('RELEAP_SSH_PORT'),
      address: get('RELEAP_SSH_ADDRESS'),
      hostKeyFile: get('RELEAP_SSH_HOST_KEY') ?? path.join(home, 'ssh_host_ed25519_key'),
    }),
    data: dataListenOf(text, get),
    reverse: reverseListenOf(text, get),
    internalHost: get('RELEAP_INTERNAL_HOST'),
    internalPort: get('RELEAP_INTERNAL_PORT'),
    publicUrl: url('RELEAP_PUBLIC_URL'),
    trustedProxies: get('RELEAP_TRUSTED_PROXIES'),
    toolboxUrl: toolboxUrlOf(url('RELEAP_TOOLBOX_URL')),
    previewDomain: get('RELEAP_PREVIEW_DOMAIN'),
    previewPort: get('RELEAP_PREVIEW_PORT'),
    gatewayDrainS: get('RELEAP_GATEWAY_DRAIN_S'),
    gatewayMetricsPort: get('RELEAP_GATEWAY_METRICS_PORT'),
    controlDrainS: get('RELEAP_CONTROL_DRAIN_S'),
    previewEngine: get('RELEAP_PREVIEW_ENGINE'),
    previewUrl: url('RELEAP_PREVIEW_URL'),
    previewTls,
    controlUrl: url('RELEAP_CONTROL_URL'),
    controlFingerprint: get('RELEAP_CONTROL_FINGERPRINT'),
    databaseUrl: get('DATABASE_URL'),
    databaseConnections: get('RELEAP_DATABASE_CONNECTIONS'),
    migrations: get('RELEAP_MIGRATIONS'),
    tokens: compact({
      operator: get('RELEAP_OPERATOR_TOKEN'),
      metrics: get('RELEAP_METRICS_TOKEN'),
      gateway: get('RELEAP_GATEWAY_TOKEN'),
      join: get('RELEAP_JOIN_TOKEN'),
    }),
    backupPassphrase: get('RELEAP_BACKUP_PASSPHRASE'),
    keyFile: get('RELEAP_KEY_FILE') ?? path.join(home, 'keys.json'),
    store: storeOf(home, text),
    hostName: get('RELEAP_HOST_NAME'),
    capacity: compact({
      cores: get('RELEAP_CORES'),
      memMib: get('RELEAP_MEMORY_MIB'),
      diskMib: get('RELEAP_DISK_MIB'),
    }),
    classes: compact({
      cpu_type: get('RELEAP_CPU_TYPE'),
      network_class: get('RELEAP_NETWORK_CLASS'),
      disk_class: get('RELEAP_DISK_CLASS'),
    }),
    diskLimit: compact({
      mibPerSecond: get('RELEAP_SANDBOX_DISK_MIB_S'),
      iops: get('RELEAP_SANDBOX_DISK_IOPS'),
    }),
    guestKernel: get('RELEAP_GUEST_KERNEL'),
    egressCaFile: get('RELEAP_EGRESS_CA_FILE'),
    keepSandboxes: get('RELEAP_KEEP_SANDBOXES') === 1,
    warmPool: {
      size: get('RELEAP_WARM_POOL'),
      ...compact({ memoryMib: get('RELEAP_WARM_POOL_MEMORY_MIB') }),
    },
    builds: {
      parallel: get('RELEAP_BUILDS'),
      cpus: get('RELEAP_BUILD_CPUS'),
      memMib: get('RELEAP_BUILD_MEMORY_MIB'),
      diskMib: get('RELEAP_BUILD_DISK_MIB'),
      timeMs: Number(get('RELEAP_BUILD_MINUTES')) * 60_000,
      cacheMib: get('RELEAP_BUILD_CACHE_MIB'),
    },
    quarantineDays: get('RELEAP_QUARANTINE_DAYS'),
    accelerator: get('RELEAP_ACCELERATOR'),
    cpuModel: get('RELEAP_CPU_MODEL'),
    volumeCommitMs: Number(get('RELEAP_VOLUME_COMMIT_S')) * 1000,
    tenantPrivateNetworks: get('RELEAP_TENANT_PRIVATE_NETWORKS'),
    storePrivateHosts: get('RELEAP_STORE_PRIVATE_HOSTS'),
    images: {
      privateHosts: get('RELEAP_REGISTRY_PRIVATE_HOSTS') ?? (isForThisMachine(text) ? ['loopback'] : []),
      ...compact({ ecrEndpoint: url('RELEAP_ECR_ENDPOINT') }),
      cacheMib: get('RELEAP_IMAGE_CACHE_MIB'),
      layerMib: get('RELEAP_LAYER_CACHE_MIB'),
    },
    region: compact({ id: get('RELEAP_REGION'), name: get('RELEAP_REGION_NAME') }),
    builtinImages: get('RELEAP_BUILTIN_IMAGES'),
    ...compact({ compatSnapshot: get('RELEAP_COMPAT_SNAPSHOT') }),
    createQueue: get('RELEAP_CREATE_QUEUE'),
    createQueueShare: get('RELEAP_CREATE_QUEUE_SHARE'),
    quotas: {
      sandboxes: get('RELEAP_QUOTA_SANDBOXES'),
      cores: get('RELEAP_QUOTA_CORES'),
      memory_mib: Number(get('RELEAP_QUOTA_MEMORY_GIB')) * 1024,
      function_instances: get('RELEAP_QUOTA_INSTANCES'),
      stored_bytes: Number(get('RELEAP_QUOTA_STORAGE_GIB')) * 2 ** 30,
      pending_invocations: get('RELEAP_QUOTA_INVOCATIONS'),
      pending_invocation_bytes: Number(get('RELEAP_QUOTA_INVOCATION_MIB')) * 2 ** 20,
    },
    buildsPerProject: get('RELEAP_BUILDS_PER_PROJECT'),
    buildContextBytes: Number(get('RELEAP_BUILD_CONTEXT_MIB')) * 2 ** 20,
    retentionDays: get('RELEAP_RETENTION_DAYS'),
    auditRetentionDays: get('RELEAP_AUDIT_RETENTION_DAYS'),
    invocationRetentionDays: get('RELEAP_INVOCATION_RETENTION_DAYS'),
    functionWindowMaxS: get('RELEAP_FUNCTION_WINDOW_MAX_S'),
    volumeHistoryMs: Number(get('RELEAP_VOLUME_HISTORY_DAYS')) * 86_400_000,
    usage: {
      mode: get('RELEAP_USAGE'),
      minuteDays: get('RELEAP_USAGE_MINUTE_DAYS'),
      hourDays: get('RELEAP_USAGE_HOUR_DAYS'),
    },
    overcommit: compact({
      cpu: get('RELEAP_CPU_OVERCOMMIT'),
      mem: get('RELEAP_MEMORY_OVERCOMMIT'),
      disk: get('RELEAP_DISK_OVERCOMMIT'),
      tier: get('RELEAP_OVERCOMMIT'),
    }),
    billing: {
      mode: get('RELEAP_BILLING'),
      overdraftLimit: parseAmount(text('RELEAP_OVERDRAFT_LIMIT') ?? '0'),
      meterMs: Number(get('RELEAP_METER_SECONDS')) * 1000,
      prices: {
        cpuSecond: price(text('RELEAP_PRICE_CPU_SECOND') ?? '0'),
        memGibSecond: price(text('RELEAP_PRICE_MEMORY_GIB_SECOND') ?? '0'),
        burstCpuSecond: price(text('RELEAP_PRICE_BURST_CPU_SECOND') ?? '0'),
        gpuSecond: price(text('RELEAP_PRICE_GPU_SECOND') ?? '0'),
        functionCpuSecond: price(text('RELEAP_PRICE_FUNCTION_CPU_SECOND') ?? '0'),
        functionMemGibSecond: price(text('RELEAP_PRICE_FUNCTION_MEMORY_GIB_SECOND') ?? '0'),
        buildCpuSecond: price(text('RELEAP_PRICE_BUILD_CPU_SECOND') ?? '0'),
        buildMemGibSecond: price(text('RELEAP_PRICE_BUILD_MEMORY_GIB_SECOND') ?? '0'),
        startFreeMs: Number(get('RELEAP_FUNCTION_START_FREE_S')) * 1000,
        spotDiscountPercent: get('RELEAP_SPOT_DISCOUNT'),
      },
    },
    rateLimits: {
      perKey: get('RELEAP_RATE_LIMIT_KEY'),
      perOrg: get('RELEAP_RATE_LIMIT_ORG'),
      perAddress: get('RELEAP_RATE_LIMIT_ADDRESS'),
    },
    // Exact: an issuer with a trailing slash is a different one.
    oidc: compact({
      issuer: get('RELEAP_OIDC_ISSUER'),
      audience: get('RELEAP_OIDC_AUDIENCE'),
      clientId: get('RELEAP_OIDC_CLIENT_ID'),
      trustEmail: get('RELEAP_OIDC_TRUST_EMAIL') === 1,
    }),
    identityPort: get('RELEAP_IDENTITY_PORT'),
    traces: url('OTEL_EXPORTER_OTLP_ENDPOINT') && {
      endpoint: url('OTEL_EXPORTER_OTLP_ENDPOINT'),
      ratio: get('OTEL_TRACES_SAMPLER_ARG'),
    },
    log: { level: get('RELEAP_LOG_LEVEL'), fileBytes: Number(get('RELEAP_LOG_FILE_MIB')) * 2 ** 20 },
  };
  return compact(config) as unknown as Config;
}

/** @throws ConfigError for an address that other machines cannot connect to */
function dataListenOf(
  text: (name: VariableName) => string | undefined,
  get: (name: VariableName) => unknown,
): Config['data'] | undefined {
  const [host, url] = [text('RELEAP_DATA_HOST'), text('RELEAP_DATA_URL')?.replace(/\/+$/, '')];
  if (host === undefined) {
    if (url === undefined) return undefined;
    throw new ConfigError([
      `RELEAP_DATA_URL=${url}: RELEAP_DATA_HOST must say at which address the runner listens`,
    ]);
  }
  if (url === undefined && ['0.0.0.0', '::'].includes(host))
    throw new ConfigError([
      `RELEAP_DATA_HOST=${host}: RELEAP_DATA_URL must say which address other machines connect to`,
    ]);
  const port = (get('RELEAP_DATA_PORT') as number | undefined) ?? dataPortOf(Number(get('RELEAP_PORT')));
  return { host, port, ...(url !== undefined && { url }) };
}

function reverseListenOf(
  text: (name: VariableName) => string | undefined,
  get: (name: VariableName) => unknown,
): object | undefined {
  const host = text('RELEAP_REVERSE_HOST') ?? text('RELEAP_INTERNAL_HOST') ?? '';
  if (text('RELEAP_REVERSE_HOST') === undefined && isLoopback(host)) return undefined;
  return compact({ host, port: get('RELEAP_REVERSE_PORT') });
}

/** Default port of the data server. */
const dataPortOf = (port: number): number => (port === 0 ? 0 : port + 6);

function problemOfDatabaseUrl(url: unknown): string | undefined {
  if (typeof url !== 'string') return undefined;
  try {
    parseDatabaseUrl(url);
    return undefined;
  } catch (error) {
    return `DATABASE_URL=${shown('DATABASE_URL', url)}: ${(error as Error).message}`;
  }
}

/** @throws ConfigError when only a part of the credentials is given */
function storeOf(home: string, text: (name: VariableName) => string | undefined): StoreOptions {
  const location = text('RELEAP_STORE') ?? path.join(home, 'store');
  const [, bucket, prefix = ''] = /^s3:\/\/([^/]+)\/?(.*)$/.exec(location) ?? [];
  if (bucket === undefined) return { type: 'folder', path: path.resolve(location) };
  const accessKeyId = text('RELEAP_STORE_S3_ACCESS_KEY_ID');
  const secretAccessKey = text('RELEAP_STORE_S3_SECRET_ACCESS_KEY');
  const file = text('RELEAP_STORE_S3_CREDENTIALS_FILE');
  if ((accessKeyId === undefined) !== (secretAccessKey === undefined))
    throw new ConfigError([
      'RELEAP_STORE_S3_ACCESS_KEY_ID and RELEAP_STORE_S3_SECRET_ACCESS_KEY must be set together',
    ]);
  if (accessKeyId !== undefined && file !== undefined)
    throw new ConfigError([
      'RELEAP_STORE_S3_CREDENTIALS_FILE and RELEAP_STORE_S3_ACCESS_KEY_ID exclude each other',
    ]);
  return {
    type: 's3',
    bucket,
    prefix: prefix.replace(/\/+$/, ''),
    endpoint: text('RELEAP_STORE_S3_ENDPOINT')?.replace(/\/+$/, ''),
    region: text('RELEAP_STORE_S3_REGION') ?? 'us-east-1',
    credentials:
      file !== undefined
        ? { file }
        : accessKeyId !== undefined && secretAccessKey !== undefined
          ? { accessKeyId, secretAccessKey }
          : undefined,
    spoolFolder: path.join(home, 'store-spool'),
  };
}

function compact(object: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));
}

/** Base URL of the internal listener of the control plane. */
export function internalUrlOf(config: Config): string {
  return (
    config.controlUrl ?? `http://${urlHost(config.internalHost)}:${config.internalPort ?? config.port + 2}`
  );
}

/** The host part of a local URL: an address that clients on this machine can use, IPv6 in brackets. */
export function urlHost(host: string): string {
  if (host === '0.0.0.0') return '127.0.0.1';
  if (host === '::') return '[::1]';
  return host.includes(':') ? `[${host}]` : host;
}

/** Whether only users of this machine can reach the API: they may as well use its registries. */
function isForThisMachine(text: (name: VariableName) => string | undefined): boolean {
  const hosts = (['RELEAP_PUBLIC_URL', 'RELEAP_CONTROL_URL'] as const).flatMap((name) => {
    const url = text(name);
    return url === undefined || url.startsWith('unix:') ? [] : [new URL(url).hostname];
  });
  return [text('RELEAP_HOST') ?? '', ...hosts].every(isLoopback);
}

export function isLoopback(host: string): boolean {
  return ['localhost', '::1', '[::1]'].includes(host) || /^127\.[0-9.]+$/.test(host);
}

/** Names that lead to this machine, in browsers and curl (RFC 6761). */
export function isLocalName(domain: string): boolean {
  return domain === 'localhost' || domain.endsWith('.localhost');
}

/** The region's `toolbox_proxy_url` for a gateway's base URL; unchanged if it has the path already. */
export function toolboxUrlOf(gatewayUrl: string): string;
export function toolboxUrlOf(gatewayUrl: string | undefined): string | undefined;
export function toolboxUrlOf(gatewayUrl: string | undefined): string | undefined {
  if (gatewayUrl === undefined) return gatewayUrl;
  const base = gatewayUrl.replace(/\/+$/, '');
  return base.endsWith('/toolbox') ? base : `${base}/toolbox`;
}

/** Clients accept no certificate for `*.localhost`. */
const DEV_DOMAIN = 'preview.localhost';

/** Base URL of previews for clients; undefined when they have no domain. */
export function previewUrlOf(
  { previewUrl, previewDomain, previewTls, host }: Config,
  previewPort: number,
): string | undefined {
  if (previewUrl !== undefined) return previewUrl;
  const tlsDomain =
    previewDomain ?? (previewTls?.source === 'dev' && isLoopback(host) ? DEV_DOMAIN : undefined);
  if (previewTls !== undefined && tlsDomain !== undefined) {
    const { port } = previewTls;
    return `https://${tlsDomain}${port === 443 ? '' : `:${port}`}`;
  }
  const isOfMachine = previewDomain === undefined ? isLoopback(host) : isLocalName(previewDomain);
  if (isOfMachine || isLoopback(host)) return `http://${previewDomain ?? 'localhost'}:${previewPort}`;
  return previewDomain === undefined ? undefined : `https://${previewDomain}`;
}

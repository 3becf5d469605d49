/**
 * The limits of requests. Those of the contract are in `LIMITS` and `DEFAULTS`; operators may set those in
 * `PlatformLimits`.
 */

/** Fixed by the contract. The comments name the section of docs/api.md. */
export const LIMITS = {
  /** List pages: `limit` is clamped to 1..200 for sandboxes, images and snapshots. */
  pageMin: 1,
  pageMax: 200,
  /** Pages of the invocation log are larger. */
  invocationPageMax: 1000,
  /** Long poll: `timeout_ms` is clamped to 0..60000. */
  waitMsMin: 0,
  waitMsMax: 60_000,
  /** Create: most volumes, and most object-store mounts, of one sandbox. */
  volumesPerSandbox: 8,
  objectStoreMountsPerSandbox: 8,
  /** Create: largest value of one environment variable, in bytes of UTF-8. */
  envValueBytes: 64 * 1024,
  /** Create: smallest guarantee of a burstable sandbox, in cores. */
  burstableCpuMin: 0.125,
  /** Create: a dedicated sandbox has whole cores, at least this many. */
  dedicatedCpuMin: 1,
  /** Ports are 16 bit numbers; 0 is not valid. */
  portMin: 1,
  portMax: 65_535,
  /** Secrets: their names double as environment variables. */
  secretNameChars: 256,
  /** Largest value of a secret, and largest password of a registry credential, in bytes of UTF-8. */
  secretValueBytes: 64 * 1024,
  volumeNameChars: 128,
  /** Volumes: size in GiB. */
  volumeGbMin: 1,
  volumeGbMax: 10_000,
  volumeGbDefault: 100,
  objectStoreNameChars: 128,
  /** Object stores: longest lifetime of a cached folder, in seconds. */
  dirCacheSecsMax: 86_400,
  /** Functions: 1 to this many characters in a name. */
  functionNameChars: 64,
  functionVcpusMin: 1,
  functionMemMibMin: 128,
  functionScratchMibMin: 64,
  functionTimeoutMin: 1,
  /** 48 hours. */
  functionTimeoutMax: 172_800,
  functionScaledownMin: 2,
  /** Largest file of a multipart deploy: the build context, in bytes. */
  functionContextBytes: 8 * 1024 * 1024,
} as const;

/** Not in the contract; they bound everything that a client sends. */
export const BOUNDS = {
  /** Largest JSON request body, in bytes. */
  requestBodyBytes: 8 * 1024 * 1024,
  /** Names and values of one environment in total: execve(2) accepts 2 MiB with the usual 8 MiB stack. */
  envTotalBytes: 1024 * 1024,
  envNameChars: 256,
  /** Leases of sandboxes. */
  leaseSecondsMin: 30,
  leaseSecondsMax: 86_400,
  /** Display names: of sandboxes. */
  displayNameChars: 256,
  /** Names of images: 1 to 128 characters, like those of volumes. */
  imageNameChars: 128,
  snapshotNameChars: 128,
  portsPerSandbox: 64,
  endpointsPerSandbox: 100,
  /** A month. */
  previewLinkSeconds: 30 * 86_400,
  egressEntries: 256,
  secretsPerSandbox: 64,
  secretsPerProject: 1000,
  domainsPerSecret: 64,
  registriesPerProject: 200,
  objectStoresPerProject: 200,
  volumesPerProject: 1000,
  /** AWS allows 63 characters; other services more. */
  bucketChars: 255,
  endpointChars: 2048,
  storeRegionChars: 64,
  /** Keys of objects have at most 1024 bytes. */
  keyPrefixChars: 1024,
  registryUsernameChars: 1024,
  /** Description of a secret or a credential. */
  descriptionChars: 1024,
  gpusPerSandbox: 64,
  mountPathChars: 1024,
  /** Inline Dockerfile text, in characters. It is part of the rows of sandboxes and images; larger ones are uploaded. */
  dockerfileChars: 64 * 1024,
  /** Path of a Dockerfile in its build context. */
  dockerfilePathChars: 1024,
  /** Functions of a project. `GET /fns` lists them all. */
  functionsPerProject: 10_000,
  /** Names and values of the environment of a function in total, in bytes: lists of versions show it. */
  functionEnvBytes: 128 * 1024,
  /** A list of all versions of a function ends with the page that exceeds this, in bytes. */
  functionVersionListBytes: 16 * 1024 * 1024,
  /** A text part of a multipart deploy, in bytes: a configuration with the largest environment, escaped. */
  functionFieldBytes: 1024 * 1024,
  handlerArguments: 256,
  /** All arguments of a handler, in bytes of UTF-8. */
  handlerBytes: 64 * 1024,
  /** Largest body of an invocation, and largest result that is kept of one that no client waits for, in bytes. */
  invocationPayloadBytes: 6 * 1024 * 1024,
  invocationResultBytes: 256 * 1024,
  /** Most payloads of one map. */
  mapPayloads: 1000,
  contentTypeChars: 255,
  /** Of the headers that are stored with a spawned invocation, as JSON. */
  payloadHeaderBytes: 8 * 1024,
  cronChars: 256,
  /** `GET /fns/:name/schedules` lists them all. */
  schedulesPerFunction: 100,
  /** Region slugs are part of sandbox ids, and those of preview host names: of a label's 63 characters, 33 are taken. */
  regionSlugChars: 30,
  /** Their columns are 32 bit integers. */
  int32: 2_147_483_647,
} as const;

/** What the image cache of a host keeps unless the operator says otherwise, in MiB. */
export const IMAGE_CACHE_MIB = { images: 65_536, layers: 16_384 } as const;

/** Defaults of requests. */
export const DEFAULTS = {
  mode: 'burstable',
  /** Guaranteed cores of a burstable sandbox with neither `cpu` nor `vcpus`. */
  burstableCpu: 0.125,
  vcpus: 2,
  memMib: 1024,
  scratchMib: 512,
  cpuArch: 'amd64',
  portProto: 'tcp',
  pageSize: 100,
  waitMs: 30_000,
} as const;

/** Defaults of the deploy of a function. */
export const FUNCTION_DEFAULTS = {
  port: 8080,
  vcpus: 1,
  memMib: 512,
  scratchMib: 512,
  timeoutS: 300,
  scaledownWindowS: 60,
  maxConcurrency: 1,
  snapshotKind: 'pre_entrypoint',
  activate: 'now',
} as const;

/** Settings of the operator; the default is `PLATFORM_LIMITS`. */
export interface PlatformLimits {
  /** Most cores of a dedicated sandbox; more is refused. */
  dedicatedCpuMax: number;
  /** Largest guarantees of a burstable sandbox; more is refused. Cores, MiB, MiB. */
  burstCpuMax: number;
  burstMemMib: number;
  burstScratchMib: number;
  /** Explicit values below these are raised to them, in MiB. Defaults are not. */
  memMibMin: number;
  scratchMibMin: number;
  dockerDataMibMin: number;
}

export const PLATFORM_LIMITS: PlatformLimits = {
  dedicatedCpuMax: 16,
  burstCpuMax: 16,
  burstMemMib: 64 * 1024,
  burstScratchMib: 256 * 1024,
  // Below 128 MiB the guest's kernel, its modules and an overlay leave no memory for a workload.
  memMibMin: 128,
  // The smallest ext4 file system whose journal and inode tables leave space for files.
  scratchMibMin: 64,
  dockerDataMibMin: 256,
};

/** Mount points that the guest needs; nothing may be mounted on them or below them. */
export const RESERVED_MOUNT_PATHS = ['/', '/proc', '/sys', '/dev', '/overlay', '/mnt/scratch'] as const;

/** Names of organizations and projects, in characters. */
export const NAME_CHARS = 128;
/** E-mail addresses, in characters. */
export const EMAIL_CHARS = 254;

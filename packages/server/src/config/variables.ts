import { isIP } from 'node:net';
import { isRegionSlug } from '@releap/contract';
import { BILLING_MODES, BILLING_SETTINGS, OVERDRAFT_DEFAULT, PRICE_DEFAULTS } from '@releap/control/billing';
import { Type, type TSchema } from 'typebox';

/** One environment variable. */
export interface Variable<S extends TSchema = TSchema> {
  schema: S;
  /** The default; a description if it depends on something. */
  default?: string | number | readonly string[];
  defaultText?: string;
  unit?: string;
  /** Its value is never shown. */
  secret?: boolean;
  description: string;
  group:
    | 'Where things are'
    | 'Network'
    | 'Database'
    | 'The store'
    | 'Credentials'
    | 'This machine'
    | 'The service'
    | 'Signing in'
    | 'Billing'
    | 'Limits'
    | 'Log';
}

const variable = <S extends TSchema>(value: Variable<S>): Variable<S> => value;

const AbsolutePath = Type.String({ pattern: '^/[^\\0]*$', expected: 'an absolute path' });
const Port = Type.Integer({ minimum: 0, maximum: 65_535 });
const HttpUrl = Type.String({
  pattern: '^https?://[^\\s/?#]+[^\\s?#]*$',
  expected: 'an http:// or https:// URL without query',
});
const Token = Type.String({
  pattern: '^[A-Za-z0-9_-]{43,1024}$',
  expected: 'at least 43 characters of A-Z a-z 0-9 _ -',
});
const Positive = Type.Integer({ minimum: 1 });
const Price = Type.String({
  pattern: '^\\d{1,6}(\\.\\d{1,12})?$',
  expected: 'a decimal from 0 with at most 12 digits after the point',
});
const Credits = Type.String({
  pattern: '^\\d{1,9}(\\.\\d{1,9})?$',
  expected: 'a decimal from 0 with at most 9 digits after the point',
});
const Rate = Type.Integer({ minimum: 0, maximum: 100_000_000 });
const Overcommit = Type.Number({ minimum: 1, maximum: 100 });

/** An address, or a block of them. */
function isNetwork(text: string): boolean {
  const [address = '', bits, ...rest] = text.split('/');
  const family = isIP(address);
  if (family === 0 || rest.length > 0) return false;
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128));
}

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;
export const BUILTIN_IMAGE_NAMES = ['busybox', 'debian'] as const;

/** Every variable of the server: parsing, defaults and docs/configuration.md all come from here. */
export const VARIABLES = {
  RELEAP_HOME: variable({
    schema: AbsolutePath,
    default: '/var/lib/releap',
    description: 'State: database, sandboxes, logs, `bootstrap.json`. One service a folder.',
    group: 'Where things are',
  }),
  RELEAP_CACHE: variable({
    schema: AbsolutePath,
    defaultText: '`$RELEAP_HOME/cache`',
    description:
      'Folder of the cache: root images, templates, empty disks. It can be rebuilt, and several services may share it.',
    group: 'Where things are',
  }),
  RELEAP_HOST: variable({
    schema: Type.String({ pattern: '^[0-9A-Za-z.:_-]+$', expected: 'an IP address or a host name' }),
    default: '127.0.0.1',
    description: 'Address that the API, the gateway and the declared ports of sandboxes listen on.',
    group: 'Network',
  }),
  RELEAP_PORT: variable({
    schema: Port,
    default: 7070,
    description: 'Port of the API. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_GATEWAY_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 1, or a free one if that is taken',
    description: 'Port of the gateway: exec, files and, later, previews of sandboxes. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_INTERNAL_HOST: variable({
    schema: Type.String({ pattern: '^[0-9A-Za-z.:_-]+$', expected: 'an IP address or a host name' }),
    default: '127.0.0.1',
    description:
      'Address of the internal listener of the control plane: runners, gateways, the operator and `/metrics`. Tenants ' +
      'must not be able to reach it.',
    group: 'Network',
  }),
  RELEAP_INTERNAL_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 2, or a free one if that is taken',
    description: 'Port of the internal listener. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_PUBLIC_URL: variable({
    schema: HttpUrl,
    defaultText: '`http://RELEAP_HOST:RELEAP_PORT`',
    description: 'Base URL of the API for clients, if there is a proxy in front of it.',
    group: 'Network',
  }),
  RELEAP_TRUSTED_PROXIES: variable({
    schema: Type.Array(Type.Refine(Type.String(), isNetwork), {
      expected: 'IP addresses and CIDR blocks, separated by commas',
    }),
    description:
      'Trusted proxies: only their `X-Forwarded-For` is used for addresses in the audit log and for rate limits.',
    group: 'Network',
  }),
  RELEAP_TENANT_PRIVATE_NETWORKS: variable({
    schema: Type.Array(
      Type.Refine(
        Type.String(),
        (text: string) => isNetwork(text) && text.includes('/') && !text.includes(':'),
      ),
      { expected: 'IPv4 networks such as 10.20.0.0/16, separated by commas, or none' },
    ),
    default: [],
    defaultText: 'none',
    description:
      'Private networks around the host that the egress policy of a sandbox may allow. All other private networks are always blocked.',
    group: 'Network',
  }),
  RELEAP_TOOLBOX_URL: variable({
    schema: HttpUrl,
    defaultText: '`http://RELEAP_HOST:RELEAP_GATEWAY_PORT`',
    description:
      'Base URL of the gateway for clients, if there is a proxy in front of it. The `toolbox_proxy_url` of the ' +
      'region is this with `/toolbox` appended.',
    group: 'Network',
  }),
  RELEAP_PREVIEW_DOMAIN: variable({
    schema: Type.String({ pattern: '^[a-z0-9-]+(\\.[a-z0-9-]+)*$', expected: 'a domain name in lower case' }),
    description: 'Domain of preview URLs, `<port>-<sandbox>.<domain>`. Previews come with a later version.',
    group: 'Network',
  }),
  RELEAP_CONTROL_URL: variable({
    schema: Type.String({
      pattern: '^(https?://[^\\s/]+|unix:/\\S+)/?$',
      expected: 'http://host:port or unix:/path.sock',
    }),
    defaultText: '`http://RELEAP_INTERNAL_HOST:RELEAP_INTERNAL_PORT`',
    description:
      'Base URL of the internal listener of the control plane, for the roles `runner` and `gateway` and for the operator.',
    group: 'Network',
  }),
  DATABASE_URL: variable({
    schema: Type.String({ pattern: '^postgres(ql)?://', expected: 'a postgres:// URL' }),
    defaultText: 'a private PostgreSQL in `$RELEAP_HOME/postgres`, on a Unix socket',
    description: 'PostgreSQL (15 or newer) to use instead of a private one.',
    group: 'Database',
  }),
  RELEAP_DATABASE_CONNECTIONS: variable({
    schema: Type.Integer({ minimum: 2, maximum: 1000 }),
    default: 16,
    description: 'Most connections that one control server holds.',
    group: 'Database',
  }),
  RELEAP_OPERATOR_TOKEN: variable({
    schema: Token,
    secret: true,
    defaultText: 'the content of `$RELEAP_HOME/operator.token`, created on first start',
    description:
      'Credential of the operator plane: hosts, grants, audit. For control servers and the operator.',
    group: 'Credentials',
  }),
  RELEAP_GATEWAY_TOKEN: variable({
    schema: Token,
    secret: true,
    defaultText: 'the content of `$RELEAP_HOME/gateway.token`, created on first start',
    description: 'Credential of gateways. For control servers and gateways.',
    group: 'Credentials',
  }),
  RELEAP_JOIN_TOKEN: variable({
    schema: Token,
    secret: true,
    defaultText: 'the content of `$RELEAP_HOME/join.token`, created on first start',
    description:
      'Lets a machine join as a new runner, which then has its own credential. For control servers, and for a machine until ' +
      'its runner has joined.',
    group: 'Credentials',
  }),
  RELEAP_TOKEN_FILE: variable({
    schema: AbsolutePath,
    defaultText: '`$RELEAP_HOME/internal.token`',
    description:
      'File with the shared token of version 0.1, if there is one. It authorizes nothing else; it lets the runners of that version ' +
      'join by themselves.',
    group: 'Credentials',
  }),
  RELEAP_KEY_FILE: variable({
    schema: AbsolutePath,
    defaultText: '`$RELEAP_HOME/keys.json`, created on first start',
    description:
      'File with the keys that encrypt secrets and registry passwords ([secrets.md](secrets.md)). Readable only by its owner; the same on all control servers. Back it up apart from the database.',
    group: 'Database',
  }),
  RELEAP_STORE: variable({
    schema: Type.String({
      pattern: '^(/[^\\0]*|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?)$',
      expected: 'an absolute path, or s3://bucket/prefix',
    }),
    defaultText: '`$RELEAP_HOME/store`',
    description:
      'Where images, snapshots and build contexts are stored: a folder, or an S3 bucket. The same on all control servers: ' +
      'several machines need a bucket, or a folder that all of them mount.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_ENDPOINT: variable({
    schema: HttpUrl,
    defaultText: 'that of AWS for the region',
    description: 'Base URL of an S3-compatible service. Buckets are addressed by path there.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_REGION: variable({
    schema: Type.String({ pattern: '^[A-Za-z0-9-]{1,64}$', expected: 'the name of a region' }),
    default: 'us-east-1',
    description: 'Region of the bucket.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_ACCESS_KEY_ID: variable({
    schema: Type.String({ pattern: '^\\S{1,256}$', expected: 'text without spaces' }),
    defaultText:
      'the credentials that the AWS SDK finds: `AWS_…` variables, profile files, the role of the machine',
    description: 'Access key of the bucket.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_SECRET_ACCESS_KEY: variable({
    schema: Type.String({ pattern: '^\\S{1,1024}$', expected: 'text without spaces' }),
    secret: true,
    defaultText: 'see `RELEAP_STORE_S3_ACCESS_KEY_ID`',
    description: 'Secret of the access key.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_CREDENTIALS_FILE: variable({
    schema: AbsolutePath,
    defaultText: 'see `RELEAP_STORE_S3_ACCESS_KEY_ID`',
    description:
      'JSON file with `access_key_id`, `secret_access_key` and, for temporary keys, `session_token`, instead of the two ' +
      'variables. It is read again within minutes after it was replaced.',
    group: 'The store',
  }),
  RELEAP_CORES: variable({
    schema: Positive,
    defaultText: 'what the machine has',
    unit: 'cores',
    description: 'Cores that this machine offers to sandboxes.',
    group: 'This machine',
  }),
  RELEAP_MEMORY_MIB: variable({
    schema: Positive,
    defaultText: 'what the machine has',
    unit: 'MiB',
    description: 'Memory that this machine offers to sandboxes.',
    group: 'This machine',
  }),
  RELEAP_DISK_MIB: variable({
    schema: Positive,
    defaultText: 'what is free below `RELEAP_HOME`',
    unit: 'MiB',
    description: 'Disk that this machine offers to sandboxes.',
    group: 'This machine',
  }),
  RELEAP_GUEST_KERNEL: variable({
    schema: AbsolutePath,
    defaultText: "the distribution's",
    description:
      "Kernel of the guests for x86-64: a bzImage (`vmlinuz`) or an ELF `vmlinux` of the operator's own, for example one built for paravirtual KVM. With huge pages (`CONFIG_HUGETLBFS`). It is tried like the default one and gets templates of its own. `npm start` prepares it; sandboxes that were made with another kernel keep theirs until they start anew.",
    group: 'This machine',
  }),
  RELEAP_GUEST_MODULES: variable({
    schema: AbsolutePath,
    defaultText: 'none: what guests need is built into the kernel',
    description:
      'Folder with the modules of `RELEAP_GUEST_KERNEL`, such as `/lib/modules/VERSION`. Needed: ' +
      'virtio_mmio, virtio_console, virtio_blk, virtio_net, virtio-rng, squashfs, overlay.',
    group: 'This machine',
  }),
  RELEAP_WARM_POOL: variable({
    schema: Type.Integer({ minimum: 0, maximum: 256 }),
    default: 2,
    unit: 'micro-VMs',
    description:
      'Minimum size of the warm pool: restored micro-VMs of the default size that wait for a create, and one VMM for forks. It grows with demand, also for other sizes. Creates, starts and forks that use one are faster; 0 disables the pool.',
    group: 'This machine',
  }),
  RELEAP_WARM_POOL_MEMORY_MIB: variable({
    schema: Type.Integer({ minimum: 0 }),
    defaultText: 'an eighth of what the machine has',
    unit: 'MiB',
    description:
      'Most memory of the warm pool, as proportional set size. The pool is emptied while the machine has less than 1 GiB available.',
    group: 'This machine',
  }),
  RELEAP_QUARANTINE_DAYS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 3650 }),
    default: 7,
    unit: 'days',
    description:
      'How long disks, memory and snapshots that the control plane no longer names stay in `runner/quarantine`; 0 keeps them until the operator removes them.',
    group: 'This machine',
  }),
  RELEAP_BUILDS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 64 }),
    default: 1,
    unit: 'builds',
    description:
      'How many Dockerfiles are built at a time, each in a micro-VM. 0: this machine builds none. The memory of a build that runs is taken from what sandboxes are promised.',
    group: 'This machine',
  }),
  RELEAP_BUILD_CPUS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 64 }),
    default: 2,
    unit: 'CPUs',
    description: 'Virtual CPUs of a build. Beside busy sandboxes it weighs a quarter of them.',
    group: 'This machine',
  }),
  RELEAP_BUILD_MEMORY_MIB: variable({
    schema: Type.Integer({ minimum: 512, maximum: 1024 * 1024 }),
    default: 2048,
    unit: 'MiB',
    description: 'Memory of a build. A build waits until the machine has it.',
    group: 'This machine',
  }),
  RELEAP_BUILD_DISK_MIB: variable({
    schema: Type.Integer({ minimum: 1024, maximum: 1024 * 1024 }),
    default: 10 * 1024,
    unit: 'MiB',
    description:
      'Disk of a build, with the layer cache of its project. The file on the machine is sparse. Another size discards the caches.',
    group: 'This machine',
  }),
  RELEAP_BUILD_MINUTES: variable({
    schema: Type.Integer({ minimum: 1, maximum: 1440 }),
    default: 30,
    unit: 'minutes',
    description: 'Longest time of a build, from when it is its turn.',
    group: 'This machine',
  }),
  RELEAP_BUILD_CACHE_MIB: variable({
    schema: Type.Integer({ minimum: 0 }),
    default: 20 * 1024,
    unit: 'MiB',
    description:
      'Most disk space of the layer caches of all projects. The least recently used are removed; one that no build has used for 7 days is removed, too.',
    group: 'This machine',
  }),
  RELEAP_REGION: variable({
    schema: Type.Refine(
      Type.String({ expected: 'a slug: a-z, 0-9 and inner hyphens, a letter first, short' }),
      isRegionSlug,
    ),
    default: 'local',
    description: 'Slug of the region that this server belongs to. Ids of sandboxes begin with it.',
    group: 'The service',
  }),
  RELEAP_REGION_NAME: variable({
    schema: Type.String({ minLength: 1, maxLength: 128 }),
    defaultText: 'the slug',
    description: 'Display name of the region.',
    group: 'The service',
  }),
  RELEAP_BUILTIN_IMAGES: variable({
    schema: Type.Array(Type.Enum(BUILTIN_IMAGE_NAMES), { uniqueItems: true }),
    default: BUILTIN_IMAGE_NAMES,
    description:
      'Built-in images, made on this machine without a registry; separated by commas, `none` for none.',
    group: 'The service',
  }),
  RELEAP_CREATE_QUEUE: variable({
    schema: Positive,
    default: 1000,
    unit: 'sandboxes',
    description: 'Most sandboxes that may wait for a host. Further creates are refused with 429.',
    group: 'The service',
  }),
  RELEAP_CREATE_QUEUE_SHARE: variable({
    schema: Type.Number({ minimum: 0.01, maximum: 1_000_000 }),
    default: 1,
    unit: 'times',
    description:
      'Most sandboxes of one organization that may wait for a host, as a multiple of the free places of the queue; ' +
      'further creates are refused with 429. With 1, a single organization gets half of the queue, two busy ones a third each.',
    group: 'The service',
  }),
  RELEAP_BUILDS_PER_PROJECT: variable({
    schema: Positive,
    default: 2,
    unit: 'builds',
    description: 'Most image builds of one project at a time. A host takes 4, and projects take turns.',
    group: 'The service',
  }),
  RELEAP_BUILD_CONTEXT_MIB: variable({
    schema: Type.Integer({ minimum: 1, maximum: 65_536 }),
    default: 512,
    unit: 'MiB',
    description: 'Largest build context of an image. Larger uploads are refused with 400.',
    group: 'Limits',
  }),
  RELEAP_OVERCOMMIT: variable({
    schema: Type.Enum(['spot', 'burstable']),
    defaultText: '`burstable` for the all-in-one server, `spot` for separate roles',
    description:
      'Whose guarantees are overcommitted: `spot` sandboxes only, or every `burstable` one. Dedicated sandboxes never ' +
      'are. With `spot` the sum of all other guarantees on a host is at most the host.',
    group: 'The service',
  }),
  RELEAP_CPU_OVERCOMMIT: variable({
    schema: Overcommit,
    default: 8,
    unit: 'times',
    description:
      'Overcommitment factor of cores: how many times the guaranteed cores of overcommitted sandboxes may exceed those of the host.',
    group: 'The service',
  }),
  RELEAP_MEMORY_OVERCOMMIT: variable({
    schema: Overcommit,
    default: 4,
    unit: 'times',
    description: 'Overcommitment factor of memory.',
    group: 'The service',
  }),
  RELEAP_DISK_OVERCOMMIT: variable({
    schema: Overcommit,
    default: 4,
    unit: 'times',
    description: 'Overcommitment factor of disk.',
    group: 'The service',
  }),
  RELEAP_RETENTION_DAYS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 36_500 }),
    default: 30,
    unit: 'days',
    description:
      'Retention of deleted sandboxes, deleted and failed snapshots, finished jobs, past invitations and lost hosts without ' +
      'resources. 0 keeps them. The ledger is never purged.',
    group: 'The service',
  }),
  RELEAP_AUDIT_RETENTION_DAYS: variable({
    schema: Type.Integer({ minimum: 0, maximum: 36_500 }),
    default: 365,
    unit: 'days',
    description: 'Retention of the audit log, which is removed by whole months. 0 keeps it.',
    group: 'The service',
  }),
  RELEAP_BILLING: variable({
    schema: Type.Enum(BILLING_MODES),
    default: BILLING_SETTINGS.mode,
    description:
      '`meter`: use is written to the ledger of each organization, and nothing is refused. `enforce`: at a ' +
      'balance of zero nothing new is started, and beyond the overdraft limit running sandboxes are deleted; give ' +
      'credits with `rlp admin grant`. `off`: nothing is charged.',
    group: 'Billing',
  }),
  RELEAP_OVERDRAFT_LIMIT: variable({
    schema: Credits,
    default: OVERDRAFT_DEFAULT,
    unit: 'credits',
    description:
      'How far below zero a balance may fall before running sandboxes are deleted, for organizations without their own limit.',
    group: 'Billing',
  }),
  RELEAP_METER_SECONDS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 3600 }),
    default: BILLING_SETTINGS.meterMs / 1000,
    unit: 's',
    description:
      'Interval of the ledger entries of a running sandbox. Ended use is charged within seconds, and limits are ' +
      'enforced each minute in any case.',
    group: 'Billing',
  }),
  RELEAP_PRICE_CPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.cpuSecond,
    unit: 'credits',
    description: 'Price of a guaranteed core for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_MEMORY_GIB_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.memGibSecond,
    unit: 'credits',
    description: 'Price of a guaranteed GiB of memory for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_BURST_CPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.burstCpuSecond,
    unit: 'credits',
    description: 'Price of a core above the guarantee for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_GPU_SECOND: variable({
    schema: Price,
    default: PRICE_DEFAULTS.gpuSecond,
    unit: 'credits',
    description: 'A dedicated GPU for a second.',
    group: 'Billing',
  }),
  RELEAP_PRICE_FUNCTION_MS: variable({
    schema: Price,
    default: PRICE_DEFAULTS.functionMs,
    unit: 'credits',
    description: "A millisecond of a function's invocation. Functions come with a later version.",
    group: 'Billing',
  }),
  RELEAP_SPOT_DISCOUNT: variable({
    schema: Type.Integer({ minimum: 0, maximum: 100 }),
    default: PRICE_DEFAULTS.spotDiscountPercent,
    unit: 'percent',
    description: 'Discount on guarantees in the spot tier. Burst has no discount.',
    group: 'Billing',
  }),
  RELEAP_RATE_LIMIT_KEY: variable({
    schema: Rate,
    default: 12_000,
    unit: 'requests a minute',
    description:
      'Most requests of one API key, or of one signed-in user. 0 for no limit. Each control server counts for itself.',
    group: 'Limits',
  }),
  RELEAP_RATE_LIMIT_ORG: variable({
    schema: Rate,
    default: 60_000,
    unit: 'requests a minute',
    description: 'Most requests of all API keys of one organization in total. 0 for no limit.',
    group: 'Limits',
  }),
  RELEAP_RATE_LIMIT_ADDRESS: variable({
    schema: Rate,
    default: 1_200,
    unit: 'requests a minute',
    description:
      'Most requests of one address (IPv6: of one /64) that are public or have no valid credentials, `/healthz` left ' +
      'out. 0 for no limit.',
    group: 'Limits',
  }),
  RELEAP_OIDC_ISSUER: variable({
    schema: HttpUrl,
    defaultText: 'the development identity provider of `releap all`',
    description:
      'OpenID Connect issuer whose tokens the management plane takes, exactly as in its discovery document and its tokens. Switches the development identity provider off.',
    group: 'Signing in',
  }),
  RELEAP_OIDC_AUDIENCE: variable({
    schema: Type.String({ minLength: 1 }),
    default: 'releap',
    description: 'Audience that tokens of the issuer must name.',
    group: 'Signing in',
  }),
  RELEAP_OIDC_CLIENT_ID: variable({
    schema: Type.String({ minLength: 1, maxLength: 256 }),
    default: 'releap-cli',
    description:
      'Public client at the issuer that `rlp login` uses, with device code or with authorization code and PKCE.',
    group: 'Signing in',
  }),
  RELEAP_OIDC_TRUST_EMAIL: variable({
    schema: Type.Integer({ minimum: 0, maximum: 1 }),
    default: 0,
    description:
      '1: e-mail addresses of tokens without an `email_verified` claim count as verified. Only for an issuer that ' +
      'verifies every address, or lets no user choose theirs: a user who can set the address of another person can accept ' +
      'their invitations.',
    group: 'Signing in',
  }),
  RELEAP_IDENTITY_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 10000, or a free one if that is taken',
    description:
      'Port of the development identity provider, always on 127.0.0.1. Only without `RELEAP_OIDC_ISSUER`. 0 takes a free one.',
    group: 'Signing in',
  }),
  RELEAP_LOG_LEVEL: variable({
    schema: Type.Enum(LOG_LEVELS),
    default: 'info',
    description: 'Least severe messages that are logged.',
    group: 'Log',
  }),
  RELEAP_LOG_FILE_MIB: variable({
    schema: Type.Integer({ minimum: 1, maximum: 10_000 }),
    default: 16,
    unit: 'MiB',
    description:
      'Size at which a log file in `$RELEAP_HOME/log` is rotated. One older file per process is kept.',
    group: 'Log',
  }),
} as const;

export type VariableName = keyof typeof VARIABLES;

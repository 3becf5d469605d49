/** Placement, limits, retention and sign-in. */
import { isRegionSlug } from '@releap/contract';
import { Type } from 'typebox';
import { HttpUrl, Port, Positive, variable } from './variable.ts';

const Rate = Type.Integer({ minimum: 0, maximum: 100_000_000 });

const Overcommit = Type.Number({ minimum: 1, maximum: 100 });

const Quota = Type.Integer({ minimum: 0, maximum: 1_000_000_000 });

export const BUILTIN_IMAGE_NAMES = ['busybox', 'debian'] as const;

const quota = (value: number, unit: string, description: string) =>
  variable({
    schema: Quota,
    default: value,
    unit,
    description: `${description}; more is refused with 429. An operator sets others for single organizations.`,
    group: 'The service',
  });

export const THE_SERVICE = {
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
  RELEAP_COMPAT_SNAPSHOT: variable({
    schema: Type.String({ minLength: 1, maxLength: 512 }),
    defaultText: '`debian` if it is built in, else the first built-in image',
    description:
      'What a sandbox starts from that is created with the compatibility facade and names no snapshot: a snapshot, an image or a reference.',
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
  RELEAP_QUOTA_SANDBOXES: quota(
    20_000,
    'sandboxes',
    'Most sandboxes of one organization, also stopped and paused ones',
  ),
  RELEAP_QUOTA_CORES: quota(
    20_000,
    'cores',
    'Most cores that are guaranteed to the sandboxes and function instances of one organization',
  ),
  RELEAP_QUOTA_MEMORY_GIB: quota(65_536, 'GiB', 'Most memory that is guaranteed to them'),
  RELEAP_QUOTA_INSTANCES: quota(10_000, 'instances', 'Most function instances of one organization'),
  RELEAP_QUOTA_STORAGE_GIB: quota(
    65_536,
    'GiB',
    'What images, snapshots, volumes and results of invocations of one organization may take before no new ones are made',
  ),
  RELEAP_QUOTA_INVOCATIONS: quota(
    250_000,
    'invocations',
    'Most spawned, mapped and scheduled invocations of one organization that have not ended',
  ),
  RELEAP_QUOTA_INVOCATION_MIB: quota(8_192, 'MiB', 'Most bytes of their payloads'),
  RELEAP_BUILDS_PER_PROJECT: variable({
    schema: Positive,
    default: 2,
    unit: 'builds',
    description: 'Most image builds of one project at a time. A host takes 4, and projects take turns.',
    group: 'The service',
  }),
  RELEAP_OVERCOMMIT: variable({
    schema: Type.Enum(['spot', 'burstable', 'all']),
    defaultText: '`all` for the all-in-one server, `spot` for separate roles',
    description:
      'Whose guarantees are overcommitted: `spot` sandboxes only, every `burstable` one, or `all` including dedicated ones. ' +
      'The sum of all other guarantees on a host is at most the host.',
    group: 'The service',
  }),
  RELEAP_CPU_OVERCOMMIT: variable({
    schema: Overcommit,
    defaultText: '`16` for the all-in-one server, `8` for separate roles',
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
  RELEAP_INVOCATION_RETENTION_DAYS: variable({
    schema: Type.Integer({ minimum: 7, maximum: 3_650 }),
    default: 30,
    unit: 'days',
    description:
      'Retention of the invocations of functions, with their results; they are removed by whole days.',
    group: 'The service',
  }),
  RELEAP_FUNCTION_WINDOW_MAX_S: variable({
    schema: Type.Integer({ minimum: 2, maximum: 2_147_483_647 }),
    default: 3_600,
    unit: 's',
    description:
      'Longest `scaledown_window_s` of a function. Instances without requests cost nothing, so it bounds what tenants hold for free.',
    group: 'The service',
  }),
  RELEAP_VOLUME_HISTORY_DAYS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 3_650 }),
    default: 7,
    unit: 'days',
    description:
      'How long earlier commits of volumes can be restored: all of the last hour, and the last one of each earlier hour. The newest ' +
      'ten of a volume are always kept.',
    group: 'The service',
  }),
  RELEAP_USAGE: variable({
    schema: Type.Enum(['on', 'off'] as const),
    default: 'on',
    description:
      '`on`: what each sandbox uses is recorded by minute and hour, for its history and the report of its project. `off`: ' +
      'nothing is recorded, and both say `available: false`. Charges do not depend on it.',
    group: 'The service',
  }),
  RELEAP_USAGE_MINUTE_DAYS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 366 }),
    default: 1,
    unit: 'days',
    description:
      'Retention of the use of sandboxes by minute: about 90 MB a day for 1,000 running sandboxes. What hosts could not deliver ' +
      'for longer is not recorded.',
    group: 'The service',
  }),
  RELEAP_USAGE_HOUR_DAYS: variable({
    schema: Type.Integer({ minimum: 1, maximum: 36_500 }),
    default: 400,
    unit: 'days',
    description: 'Retention of the use of sandboxes by hour.',
    group: 'The service',
  }),
} as const;

export const LIMITS = {
  RELEAP_BUILD_CONTEXT_MIB: variable({
    schema: Type.Integer({ minimum: 1, maximum: 65_536 }),
    default: 512,
    unit: 'MiB',
    description: 'Largest build context of an image. Larger uploads are refused with 400.',
    group: 'Limits',
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
} as const;

export const SIGNING_IN = {
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
} as const;

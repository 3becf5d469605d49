/** Addresses and ports, the database, and credentials between the parts of the service. */
import { isIP } from 'node:net';
import { Type } from 'typebox';
import { AbsolutePath, HttpUrl, Port, variable } from './variable.ts';

const Token = Type.String({
  pattern: '^[A-Za-z0-9_-]{43,1024}$',
  expected: 'at least 43 characters of A-Z a-z 0-9 _ -',
});

/** An address, or a block of them. */
function isNetwork(text: string): boolean {
  const [address = '', bits, ...rest] = text.split('/');
  const family = isIP(address);
  if (family === 0 || rest.length > 0) return false;
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128));
}

/** A place in a network where registries may be, or the word for this machine. */
function isRegistryPlace(text: string): boolean {
  if (text.includes('/')) return isNetwork(text) && !text.includes(':');
  return /^[a-z0-9.-]{1,253}(:\d{1,5})?$/.test(text);
}

export const NETWORK = {
  RELEAP_HOST: variable({
    schema: Type.String({ pattern: '^[0-9A-Za-z.:_-]+$', expected: 'an IP address or a host name' }),
    default: '127.0.0.1',
    description: 'Address that the API, the gateway and the declared ports of sandboxes listen on.',
    group: 'Network',
  }),
  RELEAP_PLAIN_HTTP: variable({
    schema: Type.Integer({ minimum: 0, maximum: 1 }),
    default: 0,
    description:
      '1: clients on other machines may send API keys over plain HTTP. Otherwise control servers and gateways do not start where ' +
      '`RELEAP_HOST` is a public address, or all addresses of a machine that has one, unless `RELEAP_PUBLIC_URL` and `RELEAP_TOOLBOX_URL` ' +
      'are https:// URLs, of a proxy in front, and warn at other addresses ([security.md](security.md#listeners)).',
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
    description: 'Port of the gateway: exec, files and previews of sandboxes. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_GATEWAY_DRAIN_S: variable({
    schema: Type.Integer({ minimum: 0, maximum: 86_400 }),
    default: 300,
    unit: 's',
    description:
      'How long a gateway that runs by itself waits for open requests and connections when it is stopped; a second signal ends that. Its ' +
      '`/healthz` answers 503 meanwhile. The service of one machine does not wait.',
    group: 'Network',
  }),
  RELEAP_GATEWAY_METRICS_PORT: variable({
    schema: Port,
    defaultText: 'none: only a Unix socket',
    description:
      'Port at `RELEAP_HOST` where a gateway that runs by itself answers `GET /metrics` to the token of metrics, over plain HTTP ' +
      '([observability.md](observability.md#gateways)). 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_CONTROL_DRAIN_S: variable({
    schema: Type.Integer({ minimum: 0, maximum: 86_400 }),
    default: 300,
    unit: 's',
    description:
      'How long a control server that runs by itself waits for calls of functions when it is stopped; a second signal ends that. Its ' +
      '`/readyz` and `/healthz` answer 503 meanwhile. The service of one machine does not wait.',
    group: 'Network',
  }),
  RELEAP_SSH_HOST: variable({
    schema: Type.String({ pattern: '^[0-9A-Za-z.:_-]+$', expected: 'an IP address or a host name' }),
    defaultText: '`RELEAP_HOST`',
    description: 'Address that the SSH gateway listens on ([ssh.md](ssh.md)).',
    group: 'Network',
  }),
  RELEAP_SSH_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 4, or a free one if that is taken',
    description: 'Port of the SSH gateway. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_SSH_ADDRESS: variable({
    schema: Type.String({
      pattern: '^(\\[[0-9A-Fa-f:]+\\]|[0-9A-Za-z._-]+)(:\\d{1,5})?$',
      expected: 'a host name or an address, with an optional :port',
    }),
    defaultText: '`RELEAP_SSH_HOST:RELEAP_SSH_PORT`',
    description: 'Where clients reach the SSH gateway, if there is a proxy or load balancer in front of it.',
    group: 'Network',
  }),
  RELEAP_SSH_HOST_KEY: variable({
    schema: AbsolutePath,
    defaultText: '`$RELEAP_HOME/ssh_host_ed25519_key`, created on first start',
    description:
      "File with the SSH gateway's private host key, readable only by its owner; the same on all gateways of a region.",
    group: 'Network',
  }),
  RELEAP_INTERNAL_HOST: variable({
    schema: Type.String({ pattern: '^[0-9A-Za-z.:_-]+$', expected: 'an IP address or a host name' }),
    default: '127.0.0.1',
    description:
      'Address of the internal listener of the control plane: runners, gateways, the operator and `/metrics`. At an address that is not a ' +
      'loopback one, other machines are served over TLS alone. Tenants must not be able to reach it.',
    group: 'Network',
  }),
  RELEAP_INTERNAL_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 2, or a free one if that is taken',
    description: 'Port of the internal listener. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_DATA_HOST: variable({
    schema: Type.String({ pattern: '^[0-9A-Za-z.:_-]+$', expected: 'an IP address or a host name' }),
    defaultText:
      'none: on another machine than the control plane, the runner opens connections to gateways and control servers itself',
    description:
      'Address at which this runner serves gateways and control servers of other machines, over TLS with certificates of the deployment ' +
      '([security.md](security.md#certificates-between-machines)).',
    group: 'Network',
  }),
  RELEAP_DATA_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 6',
    description: 'Port at `RELEAP_DATA_HOST`. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_DATA_URL: variable({
    schema: Type.String({ pattern: '^https://[^\\s/?#@]+/?$', expected: 'https://host:port' }),
    defaultText: '`https://RELEAP_DATA_HOST:RELEAP_DATA_PORT`',
    description:
      'Where gateways and control servers reach this runner, if not where it listens: needed where `RELEAP_DATA_HOST` is all addresses, or ' +
      'behind a translated address. The name in it means nothing: they verify the id of the runner.',
    group: 'Network',
  }),
  RELEAP_REVERSE_HOST: variable({
    // With its port at most 64 characters (`REVERSE_ADDRESS`).
    schema: Type.String({
      pattern: '^[0-9A-Za-z.:_-]{1,56}$',
      expected: 'an IP address or a host name of at most 56 characters',
    }),
    defaultText: '`RELEAP_INTERNAL_HOST`, unless that is a loopback address: then none',
    description:
      'Address at which this gateway accepts the connections of hosts that accept none themselves (without `RELEAP_DATA_HOST`), over TLS with ' +
      'certificates of the deployment. All addresses only where the control plane is on the same machine.',
    group: 'Network',
  }),
  RELEAP_REVERSE_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 7, or a free one if that is taken',
    description: 'Port at `RELEAP_REVERSE_HOST`. 0 takes a free one.',
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
      'Trusted proxies, for control servers and gateways: only their `X-Forwarded-For` is used for addresses in the audit log and for ' +
      'rate limits, and only their `X-Forwarded-…` reach handlers of functions. Their connections to gateways are not limited by address. ' +
      'For gateways, control servers on other machines are such proxies.',
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
  RELEAP_EGRESS_CA_FILE: variable({
    schema: AbsolutePath,
    defaultText: 'only those of the host',
    description:
      'File with certificates of authorities (PEM) with which servers that secrets are sent to, and endpoints of object stores, may be verified, besides the authorities of the host.',
    group: 'Network',
  }),
  RELEAP_REGISTRY_PRIVATE_HOSTS: variable({
    schema: Type.Array(Type.Refine(Type.String(), isRegistryPlace), {
      expected:
        'hosts, host:port, IPv4 addresses and networks such as 10.20.0.0/16, or the word loopback, separated by commas, or none',
    }),
    defaultText: '`loopback` while only this machine can reach the API, else none',
    description:
      'Where pulls of images may connect to besides public addresses: registries, what they redirect to, and their token ' +
      'servers. `loopback` allows registries that an image reference names as `localhost` or `127.0.0.1`, and is the default ' +
      'while `RELEAP_HOST` and the hosts of `RELEAP_PUBLIC_URL` and `RELEAP_CONTROL_URL`, where set, are loopback addresses.',
    group: 'Network',
  }),
  RELEAP_STORE_PRIVATE_HOSTS: variable({
    schema: Type.Array(Type.Refine(Type.String(), isRegistryPlace), {
      expected:
        'hosts, host:port, IPv4 addresses and networks such as 10.20.0.0/16, or the word loopback, separated by commas, or none',
    }),
    default: [],
    defaultText: 'none',
    description:
      'Where mounted object stores may be besides public addresses. `loopback` allows endpoints that are named as `localhost` or ' +
      '`127.0.0.1`: then tenants can send signed S3 requests to programs on the host.',
    group: 'Network',
  }),
  RELEAP_ECR_ENDPOINT: variable({
    schema: HttpUrl,
    defaultText: '`https://api.ecr.<region>.amazonaws.com`',
    description: 'Where credentials of the kind `ecr` are exchanged for tokens, for example a VPC endpoint.',
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
    defaultText:
      '`localhost` while `RELEAP_HOST` is a loopback address (`preview.localhost` with `RELEAP_PREVIEW_TLS=dev`), else none: ports cannot be exposed',
    description:
      'Domain of preview URLs, `<port>-<sandbox>.<domain>`. All names below it must lead to the gateway; those below ' +
      '`localhost` lead to this machine (RFC 6761).',
    group: 'Network',
  }),
  RELEAP_PREVIEW_PORT: variable({
    schema: Port,
    defaultText: '`RELEAP_PORT` + 5, or a free one if that is taken',
    description: 'Port of previews over plain HTTP, at `RELEAP_HOST`. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_PREVIEW_ENGINE: variable({
    schema: Type.Enum(['haproxy', 'none']),
    default: 'haproxy',
    description:
      'What listens at the ports of previews: `haproxy`, which leads most requests straight to sandboxes, or `none` for the gateway ' +
      'itself. The gateway also does where HAProxy is not installed or cannot be started.',
    group: 'Network',
  }),
  RELEAP_PREVIEW_URL: variable({
    schema: HttpUrl,
    defaultText:
      '`https://RELEAP_PREVIEW_DOMAIN:RELEAP_PREVIEW_TLS_PORT` with `RELEAP_PREVIEW_TLS`; `http://RELEAP_PREVIEW_DOMAIN:RELEAP_PREVIEW_PORT` while `RELEAP_HOST` is a loopback address, or the domain is below `localhost`; else `https://RELEAP_PREVIEW_DOMAIN`',
    description:
      'Scheme, domain and port of preview URLs for clients. `https://preview.example.org` gives ' +
      '`https://<port>-<sandbox>.preview.example.org/`.',
    group: 'Network',
  }),
  RELEAP_PREVIEW_TLS_PORT: variable({
    schema: Port,
    default: 443,
    description: 'Port of previews over TLS, at `RELEAP_HOST`. 0 takes a free one.',
    group: 'Network',
  }),
  RELEAP_CONTROL_URL: variable({
    schema: Type.String({
      pattern: '^(https?://[^\\s/]+|unix:/\\S+)/?$',
      expected: 'http://host:port or unix:/path.sock',
    }),
    defaultText: '`http://RELEAP_INTERNAL_HOST:RELEAP_INTERNAL_PORT`',
    description:
      'Base URL of the internal listener of the control plane, for the roles `runner` and `gateway` and for the operator. On another machine ' +
      'an https:// URL.',
    group: 'Network',
  }),
  RELEAP_CONTROL_FINGERPRINT: variable({
    schema: Type.String({ pattern: '^[0-9a-f]{64}$', expected: '64 hexadecimal digits' }),
    defaultText: 'none: an https:// URL is verified with the authorities of this machine',
    description:
      "SHA-256 of the root of the deployment's certificates, for runners and gateways whose `RELEAP_CONTROL_URL` is https:// " +
      '(`rlp host join-settings` prints it). Used until the root itself is stored in `RELEAP_HOME`.',
    group: 'Network',
  }),
} as const;

export const DATABASE = {
  DATABASE_URL: variable({
    schema: Type.String({ pattern: '^postgres(ql)?://', expected: 'a postgres:// URL' }),
    defaultText: 'a private PostgreSQL in `$RELEAP_HOME/postgres`, on a Unix socket',
    description:
      'PostgreSQL (15 or newer) to use instead of a private one. With several hosts, `postgres://user:password@host1:5432,host2:5432/name`, ' +
      'the one that accepts writes is used ([high-availability.md](high-availability.md)). Not through a connection pooler.',
    group: 'Database',
  }),
  RELEAP_DATABASE_CONNECTIONS: variable({
    schema: Type.Integer({ minimum: 2, maximum: 1000 }),
    default: 16,
    description: 'Most connections that one control server holds.',
    group: 'Database',
  }),
  RELEAP_MIGRATIONS: variable({
    schema: Type.Enum(['start', 'wait'] as const),
    default: 'start',
    description:
      '`start`: a control server migrates the database when it starts. `wait`: it waits until `releap migrate` has done that, for ' +
      'example a job of Kubernetes.',
    group: 'Database',
  }),
  RELEAP_KEY_FILE: variable({
    schema: AbsolutePath,
    defaultText: '`$RELEAP_HOME/keys.json`, created on first start',
    description:
      'File with the keys that encrypt secrets and registry passwords ([secrets.md](secrets.md)). Readable only by its owner; the same on all control servers. Back it up apart from the database.',
    group: 'Database',
  }),
} as const;

export const CREDENTIALS = {
  RELEAP_OPERATOR_TOKEN: variable({
    schema: Token,
    secret: true,
    defaultText: 'the content of `$RELEAP_HOME/operator.token`, created on first start',
    description:
      'Credential of the operator plane: hosts, grants, audit. For control servers and the operator.',
    group: 'Credentials',
  }),
  RELEAP_METRICS_TOKEN: variable({
    schema: Token,
    secret: true,
    defaultText: 'the content of `$RELEAP_HOME/metrics.token`, created on first start',
    description:
      'Credential that reads `/metrics` of control servers, and opens nothing else. For control servers and Prometheus.',
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
      'its runner has joined; one of `rlp host join-token` has `RELEAP_CONTROL_URL` and `RELEAP_CONTROL_FINGERPRINT` too.',
    group: 'Credentials',
  }),
  RELEAP_BACKUP_PASSPHRASE: variable({
    schema: Type.String({ minLength: 12, maxLength: 1024, expected: 'a text of at least 12 characters' }),
    secret: true,
    defaultText: 'the first line of the file of `--passphrase-file`',
    description:
      'Encrypts and decrypts backups. For `releap backup` and `releap restore` alone ([backup.md](operate/backup.md)).',
    group: 'Credentials',
  }),
} as const;

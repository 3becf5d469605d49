/** Connection strings with several hosts, as libpq has them (PostgreSQL documentation, "Connection URIs"), which `pg` cannot read. */

export interface DatabaseHost {
  /** A name, an address without brackets, or the folder of a Unix socket. */
  host: string;
  port: number;
  /** The connection string of this host alone. */
  url: string;
}

export interface DatabaseUrl {
  /** At least one. */
  hosts: readonly [DatabaseHost, ...DatabaseHost[]];
  /** Whether a connection is used only when the host accepts writes: always with several hosts. */
  mustAcceptWrites: boolean;
}

const URL_PARTS = /^(postgres(?:ql)?:\/\/)(?:([^/?#]*)@)?([^/?#]*)(\/[^?#]*)?(?:\?([^#]*))?$/;
const HOST = /^(\[[0-9a-fA-F:.]+(?:%25[\w.-]+)?\]|[^:[\]\s@]*)(?::(\d*))?$/;
const DEFAULT_PORT = 5432;
const TARGETS = ['any', 'read-write', 'primary'];
/** Each is asked when the one that accepted writes does not answer. */
const HOSTS_MAX = 8;

/**
 * Splits a connection string by host. Hosts are in the authority (`h1:5432,h2:5432`) or in the parameters `host` and `port`.
 * `target_session_attrs` may be `read-write`, `primary` or `any`. A control server writes, so of several hosts it uses the one
 * that accepts writes in any case.
 * @throws an error that names the part that is wrong, and never the password
 */
export function parseDatabaseUrl(url: string): DatabaseUrl {
  const [, scheme, credentials, authority = '', path = '', query = ''] = URL_PARTS.exec(url) ?? [];
  if (scheme === undefined)
    throw new Error(
      'must be postgres://user:password@host:port,host:port/database?parameters; an @ or / in a user name or password is written as %40 or %2F',
    );
  const parameters = new URLSearchParams(query);
  const target = parameters.get('target_session_attrs') ?? 'any';
  if (!TARGETS.includes(target))
    throw new Error(
      `target_session_attrs=${target.slice(0, 40)}: must be read-write, primary or any, because a control server writes`,
    );
  const named = parameters.get('host');
  const texts =
    named === null || named === '' ? authority.split(',') : withPorts(named, parameters.get('port'));
  if (texts.length > HOSTS_MAX)
    throw new Error(`has ${texts.length} hosts: at most ${HOSTS_MAX} are allowed`);
  // Credentials in front of each host look like those of the last one.
  if (texts.length > 1 || /@.*,/.test(credentials ?? '')) checkCredentials(credentials ?? '');
  for (const name of ['host', 'port', 'target_session_attrs']) parameters.delete(name);
  const hosts = texts.map((text) => {
    const { host, port } = readHost(text, texts.length);
    const own = new URLSearchParams(parameters);
    if (host !== '') own.set('host', host);
    own.set('port', String(port));
    const user = credentials === undefined ? '' : `${credentials}@`;
    return { host, port, url: `${scheme}${user}${path === '' ? '/' : path}?${own.toString()}` };
  });
  const [first, ...rest] = hosts;
  if (first === undefined) throw new Error('names no host');
  return { hosts: [first, ...rest], mustAcceptWrites: hosts.length > 1 || target !== 'any' };
}

/** Pairs the lists of libpq's parameters `host` and `port`. One port is for all hosts. */
function withPorts(hostList: string, portList: string | null): string[] {
  const hosts = hostList.split(',');
  const ports = portList === null || portList === '' ? [''] : portList.split(',');
  if (ports.length !== 1 && ports.length !== hosts.length)
    throw new Error(
      `has ${hosts.length} hosts and ${ports.length} ports: give one port for all, or one for each`,
    );
  return hosts.map((host, index) => {
    const port = ports[index] ?? ports[0] ?? '';
    const quoted = host.includes(':') && !host.startsWith('/') ? `[${host}]` : host;
    return port === '' ? quoted : `${quoted}:${port}`;
  });
}

/** With one host `pg` takes them as they are. */
function checkCredentials(credentials: string): void {
  if (credentials.includes('@'))
    throw new Error(
      'has more than one @: user name and password are written once, in front of the first host, and an @ in them as %40',
    );
  decoded(credentials, 'the user name or password');
}

function readHost(text: string, count: number): { host: string; port: number } {
  const [, host, port = ''] = HOST.exec(text) ?? [];
  if (host === undefined)
    throw new Error(
      `host "${text.slice(0, 100)}" must be a name, an address (IPv6 in brackets) or the folder of a Unix socket, and :port`,
    );
  if (host === '' && count > 1) throw new Error('has an empty host between commas');
  const number = port === '' ? DEFAULT_PORT : Number(port);
  if (number < 1 || number > 65_535) throw new Error(`port ${port}: must be from 1 to 65535`);
  return { host: decoded(host.replace(/^\[|\]$/g, ''), 'a host'), port: number };
}

function decoded(text: string, what: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error(`has a % in ${what} that is not followed by two hexadecimal digits: write it as %25`);
  }
}

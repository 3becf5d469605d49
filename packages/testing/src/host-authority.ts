/** An authority for certificates of runners, gateways and control servers, without a control plane. */
import {
  HOST_DOMAIN,
  HostCertificate,
  type HostName,
  hostName,
  type IssuedCertificate,
} from '@releap/certificates/hosts';
import {
  createRoot,
  DAY_MS,
  generateKeys,
  type Issuer,
  issueLeaf,
  keyOfRequest,
  toPem,
} from '@releap/certificates/x509';
import { quiet } from './logging.ts';

export class TestAuthority {
  readonly #issuer: Issuer;

  private constructor(issuer: Issuer) {
    this.#issuer = issuer;
  }

  static async create(): Promise<TestAuthority> {
    const keys = await generateKeys(true);
    const options = {
      commonName: 'hosts of a test',
      keys,
      validMs: 2 * DAY_MS,
      pathLength: 0,
      domain: HOST_DOMAIN,
    };
    return new TestAuthority({ certificate: await createRoot(options), key: keys.privateKey });
  }

  get root(): string {
    return toPem(this.#issuer.certificate);
  }

  async issue(request: string, name: HostName, side?: 'server' | 'client'): Promise<IssuedCertificate> {
    const certificate = await issueLeaf(this.#issuer, {
      hosts: [hostName(name)],
      side: side ?? (name.role === 'runner' ? 'server' : 'client'),
      publicKey: await keyOfRequest(request),
      validMs: DAY_MS,
    });
    return {
      certificate: toPem(certificate),
      roots: this.root,
      not_after: certificate.notAfter.toISOString(),
    };
  }

  /** The certificate of a process, which it has from the start. */
  async certificate(name: HostName, side?: 'server' | 'client'): Promise<HostCertificate> {
    const made = new HostCertificate({ issue: (request) => this.issue(request, name, side), log: quiet });
    await made.get();
    return made;
  }
}

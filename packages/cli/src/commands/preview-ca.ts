/** `rlp preview-ca`: the root certificate that clients have to trust for previews with `RELEAP_PREVIEW_TLS=dev`. */
import { X509Certificate } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { devRootFile } from '@releap/contract/preview-certificate';
import { CliError } from '../cli-error.ts';
import { readCertificateStatus } from '../doctor/preview-certificate.ts';
import { EXIT } from '../exit-codes.ts';
import { releapHome } from '../settings.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';

export async function previewCa(context: Context, { output }: { output?: string }): Promise<number> {
  const home = releapHome(context.terminal.env);
  const status = await readCertificateStatus(home);
  if (status?.source !== 'dev')
    throw new CliError(
      `${home} has no development CA: start the service with RELEAP_PREVIEW_TLS=dev, and call this as its user`,
      { exitCode: EXIT.unavailable },
    );
  const file = join(home, devRootFile(status.domain));
  const certificate = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new CliError(`${file} cannot be read (${error.code})`, {
      exitCode: EXIT.unavailable,
      cause: error,
    });
  });
  const { fingerprint256, validToDate } = new X509Certificate(certificate);
  const copy = output === undefined ? undefined : resolve(output);
  if (copy !== undefined) await writeFile(copy, certificate);
  if (context.options.json)
    printJson(context, {
      domain: status.domain,
      file: copy ?? file,
      fingerprint_sha256: fingerprint256,
      not_after: validToDate.toISOString(),
      certificate,
    });
  else if (copy === undefined) print(context, certificate.trimEnd());
  else print(context, copy);
  const at = copy ?? 'FILE';
  remark(
    context,
    `\nThis root is valid for names below ${status.domain} alone. SHA-256 ${fingerprint256}\n` +
      `  curl      curl --cacert ${at} https://…\n` +
      `  Chromium  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n releap-previews -i ${at}   (Debian: libnss3-tools)\n` +
      '  Firefox   Settings, Certificates, View Certificates, Authorities, Import\n' +
      `  Debian    cp ${at} /usr/local/share/ca-certificates/releap-previews.crt && update-ca-certificates\n` +
      `  Node.js   NODE_EXTRA_CA_CERTS=${at}`,
  );
  return EXIT.ok;
}

import { chromium, type Browser, type Page } from 'playwright-core';

/** Of a page on a machine that does other things. */
export const DEADLINE_MS = 120_000;

/** Debian's, with an unused profile of its own. */
export async function startChromium(): Promise<Browser> {
  // Its sandbox refuses root, who runs these tests.
  return await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox'],
    timeout: DEADLINE_MS,
  });
}

/** A person opens an address of the development identity provider and does what the pages ask for. @returns the last one */
export async function signIn(browser: Browser, address: string, email: string): Promise<Page> {
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  await page.goto(address);
  const go = page.getByRole('button', { name: 'Yes, continue' });
  const mail = page.getByLabel('E-mail address');
  await go.or(mail).waitFor();
  if (await go.isVisible()) await go.click();
  await mail.fill(email);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page
    .getByText(/signed in/i)
    .first()
    .waitFor();
  return page;
}

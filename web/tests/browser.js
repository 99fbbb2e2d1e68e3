// Opens the page in Debian's Chromium.
import { mkdirSync } from 'node:fs';
import axe from 'axe-core';
import { chromium } from 'playwright-core';

const PICTURES = process.env.PICTURES; // a folder for screenshots, if they are wanted

/** Starts the browser; it has an empty profile of its own. */
export function startBrowser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}

/**
 * Opens `url` in a context of its own. The page's `faults` collects what a page must never do: errors,
 * broken policies, requests to other servers.
 */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, bypassCSP: false, ...options });
  const page = await context.newPage();
  page.faults = [];
  page.on('pageerror', (error) => page.faults.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) page.faults.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith('blob:')) page.faults.push(`request: ${request.url()}`);
  });
  await page.goto(url);
  await page.getByRole('textbox', { name: 'Message' }).waitFor();
  return page;
}

export const button = (scope, name) => scope.getByRole('button', { name, exact: true });

/** Types a message, sends it by Enter and waits for the end of the reply. */
export async function say(page, text) {
  await page.getByRole('textbox', { name: 'Message', exact: true }).fill(text);
  await page.keyboard.press('Enter');
  await replied(page);
}

/** Waits until no reply runs. */
export async function replied(page) {
  await page.locator('article.reply').last().waitFor();
  await page.getByRole('button', { name: 'Send', exact: true }).waitFor();
}

/** What axe finds, as lines; the page's policy does not bind it, as it is run by the browser's debugger. */
export async function accessibilityFaults(page) {
  await page.evaluate(`${axe.source}; undefined`);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(' ')}: ${node.failureSummary}`));
}

/** Keeps a screenshot, if they are wanted. */
export async function picture(page, name) {
  if (!PICTURES) return;
  mkdirSync(PICTURES, { recursive: true });
  await page.screenshot({ path: `${PICTURES}/${name}.png` });
}

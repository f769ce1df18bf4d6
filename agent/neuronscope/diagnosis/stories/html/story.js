// Keys, and light or dark.  The story itself needs no script.

const THEMES = [["", "Theme: system"], ["light", "Theme: light"], ["dark", "Theme: dark"]];
const root = document.documentElement;
const button = document.getElementById("theme");

function setTheme(theme) {
  const [name, label] = THEMES.find(([known]) => known === theme) ?? THEMES[0];
  if (name) root.dataset.theme = name;
  else delete root.dataset.theme;
  button.textContent = label;
}

function nextTheme() {
  const at = THEMES.findIndex(([name]) => name === (root.dataset.theme ?? ""));
  setTheme(THEMES[(at + 1) % THEMES.length][0]);
}

function move(step) {
  const causes = [...document.querySelectorAll(".cause")].filter((cause) => cause.offsetParent !== null);
  if (!causes.length) return;
  const at = causes.indexOf(document.activeElement.closest(".cause"));
  const next = at < 0 ? 0 : Math.min(causes.length - 1, Math.max(0, at + step));
  causes[next].focus();
  causes[next].scrollIntoView({ block: "start" });
}

function toggleEvidence() {
  const here = document.activeElement.closest(".cause");
  const found = [...(here ?? document).querySelectorAll(".evidence")];
  const open = found.some((evidence) => !evidence.open);
  for (const evidence of found) evidence.open = open;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { j: () => move(1), k: () => move(-1), e: toggleEvidence, t: nextTheme }[event.key];
  if (act) act();
});
button.addEventListener("click", nextTheme);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
setTheme("");
